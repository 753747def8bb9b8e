//! Files that an MPI library leaves behind.
