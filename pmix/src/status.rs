//! PMIx's numbers for what became of a call.
#![forbid(unsafe_code)]

use radic_pmi_client::Failure;

/// What became of a call: 0, or a negative number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Status(pub i32);

impl Status {
    pub(crate) const SUCCESS: Status = Status(0);
    pub(crate) const ERROR: Status = Status(-1);
    pub(crate) const UNKNOWN_DATA_TYPE: Status = Status(-16);
    pub(crate) const INADEQUATE_SPACE: Status = Status(-19);
    pub(crate) const PACK_MISMATCH: Status = Status(-22);
    pub(crate) const TIMEOUT: Status = Status(-24);
    pub(crate) const BAD_PARAM: Status = Status(-27);
    pub(crate) const OUT_OF_RESOURCE: Status = Status(-29);
    pub(crate) const INIT: Status = Status(-31);
    pub(crate) const NO_MEMORY: Status = Status(-32);
    pub(crate) const NOT_FOUND: Status = Status(-46);
    pub(crate) const NOT_SUPPORTED: Status = Status(-47);
    pub(crate) const COMM_FAILURE: Status = Status(-49);
    pub(crate) const PAST_END: Status = Status(-50);
    pub(crate) const DUPLICATE_KEY: Status = Status(-53);
    pub(crate) const LOST_CONNECTION: Status = Status(-61);
}

impl From<Failure> for Status {
    /// Of a call that the protector had no reason to refuse.
    fn from(failure: Failure) -> Status {
        match failure {
            Failure::Lost(_) => Status::LOST_CONNECTION,
            Failure::Unexpected(..) => Status::COMM_FAILURE,
            Failure::Refused(_) => Status::ERROR,
            Failure::Key | Failure::Value(_) => Status::BAD_PARAM,
        }
    }
}

/// The number alone, of a call that has nothing else to give.
pub(crate) fn of(result: Result<(), Status>) -> Status {
    result.err().unwrap_or(Status::SUCCESS)
}
