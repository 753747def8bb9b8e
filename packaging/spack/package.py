# Spack: into a repository of yours as packages/radic/package.py, then `spack install radic`.
from spack.package import *

try:
    from spack_repo.builtin.build_systems.makefile import MakefilePackage
except ImportError:
    # Before Spack 1.0 its own modules have it.
    from spack.package import MakefilePackage


class Radic(MakefilePackage):
    """Unmodified MPI programs survive the death of the machines they run on:
    a protector daemon on every node, logs of received bytes, checkpoints."""

    homepage = "https://radic.example.org"
    # A release's tarball and its sum go here; until there is one, a clone of yours: spack develop --path /path/to/radic radic@main
    git = "https://radic.example.org/radic.git"

    license("MIT OR Apache-2.0")

    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("rust@1.88:", type="build")
    depends_on("gmake", type="build")

    requires("platform=linux", "target=x86_64:", msg="RADIC restores processes of x86-64 Linux")

    build_targets = ["build"]

    @property
    def install_targets(self):
        return ["install", f"PREFIX={self.prefix}"]

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.radic)("explain", "113")
