//! Whether tasks stall for want of memory.

use std::{
    fs, io,
    time::{Duration, Instant},
};

/// How often to look.
pub(crate) const LOOK: Duration = Duration::from_millis(250);

/// The share of its time that some task stalls, in percent, from which on it
/// counts. Lazily freed pages go by themselves before, so this much means that
/// they were not enough.
const PERCENT: u128 = 10;

/// Pressure on memory between two looks (/proc/pressure/memory, Linux 4.20).
pub(crate) struct Pressure {
    stalled: Duration,
    looked: Instant,
}

impl Pressure {
    /// # Errors
    /// Where the kernel does not say.
    pub(crate) fn of_machine() -> io::Result<Self> {
        Ok(Self {
            stalled: stalled()?,
            looked: Instant::now(),
        })
    }

    /// Whether tasks have stalled since the last look. Between two looks there
    /// should be about [`LOOK`].
    pub(crate) fn is_high(&mut self) -> bool {
        let (Ok(stalled), now) = (stalled(), Instant::now()) else {
            return false;
        };
        let before = std::mem::replace(
            self,
            Self {
                stalled,
                looked: now,
            },
        );
        let time = now.duration_since(before.looked);
        stalled.saturating_sub(before.stalled).as_nanos() * 100 > time.as_nanos() * PERCENT
    }
}

/// Time that some task of the machine has stalled for want of memory so far.
fn stalled() -> io::Result<Duration> {
    let text = fs::read_to_string("/proc/pressure/memory")?;
    total_micros(&text)
        .map(Duration::from_micros)
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

fn total_micros(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.rsplit_once("total=")?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        let text = "some avg10=0.00 avg60=0.12 avg300=0.00 total=18231\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=999\n";
        assert_eq!(total_micros(text), Some(18231));
        assert_eq!(total_micros("full total=1\n"), None);
        assert_eq!(total_micros("some total=\n"), None);
    }
}
