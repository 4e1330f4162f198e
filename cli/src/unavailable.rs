//! The error for what this machine, or these options, cannot provide: nothing
//! failed, nothing was measured.

use std::fmt;

#[derive(Debug)]
pub struct Unavailable(String);

impl Unavailable {
    pub fn because(reason: impl Into<String>) -> anyhow::Error {
        Unavailable(reason.into()).into()
    }

    /// Whether that is what stands behind `error`, whatever was said around it.
    pub fn explains(error: &anyhow::Error) -> bool {
        error.downcast_ref::<Self>().is_some()
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn context_does_not_hide_it() {
        let refused: anyhow::Result<()> = Err(Unavailable::because("no swap"));
        let told = refused.context("run 1").context("pageout").unwrap_err();
        assert!(Unavailable::explains(&told));
        assert_eq!(format!("{told:#}"), "pageout: run 1: no swap");
        assert!(!Unavailable::explains(&anyhow::anyhow!("no swap")));
    }
}
