//! Giving memory back, timed: the plain way and through mmzap.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use mmzap::{Operation, Report, Teardown};

use super::rounds::Sample;
use super::width::Width;
use crate::smaps;
use crate::sys::{Advice, Mapping};

/// Runs `work` and returns its result with the seconds it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}

/// Lets mmzap find out what this kernel can do: once a process, so outside the clock.
pub fn probe_first() {
    let _ = mmzap::capabilities();
}

/// One munmap call.
pub fn plain_unmap(mapping: Mapping) -> Result<Sample> {
    let (start, len) = (mapping.start(), mapping.len());
    let (done, seconds) = timed(|| mapping.unmap());
    done.context("munmap failed")?;
    smaps::verify_unmapped(start, len)?;
    Ok(Sample::of(seconds))
}

/// mmzap's Unmap, thread start-up included.
pub fn unmap(mapping: Mapping, width: Width) -> Result<Sample> {
    let (start, len) = mapping.into_raw();
    let (report, seconds) = timed(|| {
        // SAFETY: the mapping was just taken over from its owner, nothing refers to it.
        unsafe {
            width
                .limit(Teardown::new(Operation::Unmap))
                .run_raw([(start, len)])
        }
    });
    let sample = sample(report, seconds, len as u64)?;
    smaps::verify_unmapped(start as usize, len)?;
    Ok(sample)
}

/// mmzap's `operation` on the whole of a mapping that stays.
pub fn advise(mapping: &Mapping, operation: Operation, width: Width) -> Result<Sample> {
    let (start, len) = mapping.as_raw();
    let (report, seconds) = timed(|| {
        // SAFETY: memory of ours; whoever hands it in relies on its contents only
        // where the operation keeps them.
        unsafe {
            width
                .limit(Teardown::new(operation))
                .run_raw([(start, len)])
        }
    });
    sample(report, seconds, len as u64)
}

/// The same by one plain call.
pub fn plain_advise(mapping: &Mapping, advice: Advice) -> Result<Sample> {
    let (done, seconds) = timed(|| mapping.advise(advice));
    done.context("madvise failed")?;
    Ok(Sample::of(seconds))
}

/// A sample from a report that did all of `bytes`; anything less is an error,
/// because its time would flatter.
pub fn sample(report: Report, seconds: f64, bytes: u64) -> Result<Sample> {
    let report = report
        .into_result()
        .context("mmzap could not give all memory back")?;
    if report.bytes_done as u64 != bytes {
        bail!(
            "mmzap reports {} bytes given back of {bytes}",
            report.bytes_done
        );
    }
    Ok(Sample {
        syscalls: Some(report.system_calls as u64),
        ..Sample::of(seconds)
    })
}
