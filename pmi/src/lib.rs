//! libradic_pmi.so: the PMI-1 C API, for MPI libraries that load one instead of bringing their own.
//!
//! Open MPI 4 does so when it finds `FLUX_JOB_ID` and `FLUX_PMI_LIBRARY_PATH` in its environment. The calls become PMI-1 text on the
//! socket that the protector passes as `PMI_FD`; `PMI_RANK` and `PMI_SIZE` say which process asks. `radic_pmi_client` is the conversation, without
//! unsafe code; `ffi` is the C side, as thin as it can be.

pub mod ffi;
