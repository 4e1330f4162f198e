//! One error type: operation, range, bytes done, errno, and what to do.

use std::{fmt, io};

use crate::{operation::Operation, range::PageRange};

/// The result of a single step of a teardown.
pub type Result<T> = std::result::Result<T, Error>;

/// An error number of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", io::Error::from_raw_os_error(self.0))
    }
}

/// A part of a job that the kernel did not do.
///
/// It names the operation, the range it was asked for, how many bytes of that
/// range were done before, and the kernel's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    operation: Operation,
    range: Option<PageRange>,
    done_bytes: usize,
    errno: Errno,
    advice: &'static str,
}

impl Error {
    pub(crate) fn new(
        operation: Operation,
        range: Option<PageRange>,
        done_bytes: usize,
        errno: Errno,
        advice: &'static str,
    ) -> Self {
        Self {
            operation,
            range,
            done_bytes,
            errno,
            advice,
        }
    }

    /// What was asked of the kernel.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Where; `None` when the job as a whole was refused.
    #[must_use]
    pub fn range(&self) -> Option<PageRange> {
        self.range
    }

    /// Bytes of the range that were done before the kernel refused.
    #[must_use]
    pub fn done_bytes(&self) -> usize {
        self.done_bytes
    }

    /// The kernel's answer.
    #[must_use]
    pub fn errno(&self) -> Errno {
        self.errno
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if let Some(range) = self.range {
            write!(f, " of {range} stopped after {} bytes", self.done_bytes)?;
        }
        write!(f, ": {:?}; {}", self.errno, self.advice)
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = io::Error::from_raw_os_error(error.errno.0).kind();
        Self::new(kind, error)
    }
}
