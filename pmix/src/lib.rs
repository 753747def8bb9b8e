//! libradic_pmix.so: the calls by which an MPI library asks its launcher something over PMIx, answered over PMI-1.
//!
//! Open MPI 5 knows no other launcher than PMIx. This library is preloaded for its ranks: the client calls of PMIx come here, and become lines on the socket that the
//! protector passes as `PMI_FD`. All else of PMIx (helpers that build and free its structures) stays with the real libpmix, which must be loaded: Open MPI takes a variable
//! of it, too. A process that is no rank, or has not called `PMIx_Init`, finds the real calls behind these.
//!
//! `job` is what a rank knows and asks, in the terms of PMIx; beside it `info` (what is known of the job from the start), `record` (how puts travel), `names` (publish and
//! look up) and `meeting` (fences and groups of some ranks). `pack` is the format of data buffers. None of them has unsafe code: that is in `ffi`, as thin as it can be.

pub mod ffi;
mod info;
mod job;
mod meeting;
mod names;
mod pack;
mod record;
mod status;
mod value;
