//! What the restorer is told, and where things lie. The restorer is built from this very file: plain numbers only.

/// Where the restorer is linked, far from where the kernel puts anything by itself. The constructor of every program reserves
/// this range, so that it is free in every image.
pub const RESTORER_BASE: u64 = 0x3f00_0000_0000;
/// Bytes reserved for the restorer, its plan, its stack, and the vdso while everything else changes.
pub const RESTORER_SPAN: u64 = 64 << 20;
/// The plan: a `Plan`, followed by its regions.
pub const PLAN_BASE: u64 = RESTORER_BASE + (4 << 20);
/// Bytes for the plan.
pub const PLAN_SPAN: u64 = 16 << 20;
/// Top of the restorer's stack.
pub const STACK_TOP: u64 = RESTORER_BASE + (32 << 20);
/// Bytes of the restorer's stack.
pub const STACK_SPAN: u64 = 1 << 20;
/// Where the vdso and its data wait.
pub const ASIDE_BASE: u64 = RESTORER_BASE + (40 << 20);
/// Room for each of them.
pub const ASIDE_SPAN: u64 = 1 << 20;

/// Bytes of a path with the zero byte at its end, as the kernel takes it.
pub const PATH_BYTES: usize = 4096;
/// Most shared objects of one process.
pub const MAX_OBJECTS: usize = 256;
/// Most regions of one process: the kernel's default bound (vm.max_map_count).
pub const MAX_REGIONS: usize = 65_530;

/// One region to map.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlanRegion {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Final protection.
    pub prot: u32,
    /// Flags for mmap; MAP_FIXED_NOREPLACE is added.
    pub flags: u32,
    /// What is mapped; -1: no file.
    pub fd: i32,
    /// Must it be writable while the runs are read?
    pub filled: u16,
    /// Bits of `image::meta::advice`.
    pub advice: u16,
    /// Offset in the file.
    pub offset: u64,
}

/// A mapping of the kernel that has to move.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Special {
    /// Where it is.
    pub from: u64,
    /// Where it has to go.
    pub to: u64,
    /// Bytes; 0: there is none.
    pub len: u64,
}

/// A shared object that the constructor has made anew.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Object {
    /// Its number in the image.
    pub number: u32,
    /// The descriptor it is open at.
    pub fd: i32,
}

/// Most files of which the launcher can say whom they belong to.
pub const MAX_OWNERS: usize = 1024;

/// Whom a file belongs to, as the launcher of a restart has seen it: a process in a user namespace of its own may have no number for that user.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The file's device.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Its user.
    pub owner: u32,
    /// Its group.
    pub group: u32,
}

/// All the restorer and the restart entry need to know.
#[repr(C)]
pub struct Plan {
    /// The image, positioned at its first run record.
    pub image_fd: i32,
    /// How many regions follow the plan in memory.
    pub regions: u32,
    /// What the end record must say: bytes before the runs, and the checksum so far.
    pub bytes_before: u64,
    /// CRC-32C of the header.
    pub crc_before: u32,
    /// How many entries of `objects` are in use.
    pub objects_used: u32,
    /// 1: files that the program had open for writing are not touched: it gets copies that vanish with it.
    pub alone: u32,
    /// The number of its launcher, for the restored process to know; 0: none was given.
    pub launcher: u64,
    /// Where the death of the process is reported, with a zero byte at its end; empty: nowhere.
    pub death: [u8; PATH_BYTES],
    /// The library's restart entry.
    pub entry: u64,
    /// Its stack pointer.
    pub stack: u64,
    /// vvar, vvar_vclock and vdso.
    pub specials: [Special; 3],
    /// Shared objects.
    pub objects: [Object; MAX_OBJECTS],
    /// How many entries of `owners` are in use.
    pub owners_used: u32,
    /// Whom files belong to.
    pub owners: [Owner; MAX_OWNERS],
}

impl Plan {
    /// Whom files belong to.
    pub fn owners(&self) -> &[Owner] {
        self.owners.get(..self.owners_used as usize).unwrap_or(&[])
    }
}
