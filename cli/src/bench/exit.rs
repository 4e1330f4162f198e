//! `exit`: a process that holds memory leaves; the time until its waiting parent sees it.

use anyhow::{Result, bail};

use super::child::{Child, EXIT_CODE, Task};
use super::memory_kind::Page;
use super::outcome::Outcome;
use super::progress::Progress;
use super::rounds::{Order, Rounds, Sample, Variant};
use super::settings::Settings;
use super::teardown::timed;
use crate::size;
use crate::sys::HUGE_PAGE;

const DEFAULT_SIZE: u64 = 8 * size::GIB;
const DEFAULT_RUNS: usize = 5;

pub fn run(settings: &Settings, progress: &Progress) -> Result<Outcome> {
    settings.page.check()?;
    let len = settings.memory_size("exit", DEFAULT_SIZE, HUGE_PAGE as u64)?;
    let runs = settings.runs_or(DEFAULT_RUNS);
    let mut outcome = Outcome::new("exit", "plain", len as u64, runs)?;
    outcome.page = Some(settings.page);
    let page = settings.page;
    let variants = vec![
        Variant::new("plain", None, move || leave(Task::ExitPlain, len, page)),
        Variant::new(
            "parallel",
            Some(mmzap::default_max_active().into()),
            move || leave(Task::ExitParallel, len, page),
        ),
    ];
    let rounds = Rounds::measure(variants, runs, Order::Same, progress)?;
    outcome.rows = rounds.rows(len as u64, |sample| sample.seconds);
    Ok(outcome)
}

fn leave(task: Task, len: usize, page: Page) -> Result<Sample> {
    let mut child = Child::start(task, len, page)?;
    child.wait_until_ready()?;
    let (status, seconds) = timed(|| {
        child.go()?;
        child.wait()
    });
    let status = status?;
    if status.code() != Some(EXIT_CODE) {
        bail!("the process was to leave with exit status {EXIT_CODE}, but ended with {status}");
    }
    Ok(Sample::of(seconds))
}
