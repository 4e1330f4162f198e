//! What the CPUs of this machine did, as far as /proc/stat says.

use std::fs;

/// Time of all CPUs together since the start of the machine, in clock ticks.
#[derive(Debug, Clone, Copy)]
pub struct CpuTime {
    busy: u64,
    stolen: u64,
}

impl CpuTime {
    pub fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The line is `cpu user nice system idle iowait irq softirq steal guest guest_nice`.
    fn parse(stat: &str) -> Option<Self> {
        let ticks: Vec<u64> = stat
            .lines()
            .next()?
            .strip_prefix("cpu ")?
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        let [user, nice, system, _idle, _iowait, irq, softirq, stolen, ..] = ticks[..] else {
            return None;
        };
        let busy = [user, nice, system, irq, softirq].iter().sum();
        Some(CpuTime { busy, stolen })
    }

    /// Of the time that a virtual machine wanted to run since then, the part in
    /// which its host ran somebody else: threads of a job wait for each other
    /// meanwhile, and only a quieter hour helps. 0 where nothing ran.
    pub fn stolen_share_since(self, before: Self) -> f64 {
        let stolen = self.stolen.saturating_sub(before.stolen) as f64;
        let wanted = stolen + self.busy.saturating_sub(before.busy) as f64;
        if wanted > 0.0 { stolen / wanted } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_is_a_share_of_what_was_wanted() {
        let at = |line| CpuTime::parse(line).expect("a line of /proc/stat");
        let before = at("cpu  10 0 20 1000 5 0 0 1 0 0\ncpu0 1 2\n");
        let after = at("cpu  40 0 60 2000 9 3 2 26 0 0\n");
        assert!((after.stolen_share_since(before) - 0.25).abs() < 1e-9);
        assert!(before.stolen_share_since(before).abs() < 1e-9);
    }

    #[test]
    fn other_text_is_no_time() {
        for text in ["", "cpu", "cpu  1 2 3\n", "intr 1 2 3 4 5 6 7 8 9\n"] {
            assert!(CpuTime::parse(text).is_none(), "{text}");
        }
    }
}
