//! Processes that the bench starts: itself again, with a hidden command. A child
//! prepares, says so with one byte on stdout, waits for one byte on stdin and acts.

use std::io::{self, Read, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::memory_kind::Page;
use super::{ebizzy, plan, region, volatile};
use crate::size;

/// The hidden command.
pub const COMMAND: &str = "bench-child";

/// The exit status of a child that left as it should: not 0 and not 1, so that
/// it proves to be kept.
pub const EXIT_CODE: i32 = 7;

const READY: u8 = b'r';
const GO: u8 = b'g';
const DONE: u8 = b'd';

#[derive(clap::Args)]
pub struct Args {
    #[arg(value_enum)]
    task: Task,
    #[arg(long, value_parser = size::parse, default_value = "1")]
    size: u64,
    #[arg(long, value_enum, default_value = "4k")]
    page: Page,
    /// What a task needs to know beyond that.
    #[arg(long, default_value = "")]
    job: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Task {
    /// Discard the memory and answer
    Discard,
    /// Leave with the memory in hand, plainly
    ExitPlain,
    /// Leave with the memory in hand, by mmzap
    ExitParallel,
    /// Plan a teardown and print what it took
    Plan,
    /// Allocate and free, and print how often
    Ebizzy,
    /// Work on memory that may be taken, and print how much
    Volatile,
    /// Want memory until killed
    Hog,
}

impl Task {
    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The child's side.
pub fn run(args: &Args) -> Result<()> {
    match args.task {
        Task::Plan => return plan::in_child(),
        Task::Ebizzy => return ebizzy::in_child(&args.job),
        Task::Volatile => return volatile::in_child(&args.job),
        Task::Hog => return volatile::hog_in_child(&args.job),
        _ => {}
    }
    let len = usize::try_from(args.size)?;
    let mapping = region::populated(len, args.page)?;
    say(READY)?;
    let mut byte = [0];
    io::stdin()
        .read_exact(&mut byte)
        .context("the bench went away")?;
    match args.task {
        Task::Discard => {
            mapping.discard(0, len).context("madvise failed")?;
            say(DONE)
        }
        Task::ExitPlain => {
            std::mem::forget(mapping);
            std::process::exit(EXIT_CODE)
        }
        Task::ExitParallel => {
            std::mem::forget(mapping);
            mmzap::exit::parallel(EXIT_CODE)
        }
        Task::Plan | Task::Ebizzy | Task::Volatile | Task::Hog => Ok(()),
    }
}

fn say(byte: u8) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(&[byte])
        .and_then(|()| out.flush())
        .context("the bench went away")
}

/// The bench's side. A child that is dropped early is killed and awaited.
pub struct Child {
    process: std::process::Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
}

impl Child {
    pub fn start(task: Task, len: usize, page: Page) -> Result<Self> {
        let len = len.to_string();
        Self::spawn(task, &["--size", &len, "--page", page.name()], None)
    }

    /// A task that is told what to do, in an environment with one word more.
    pub fn start_job(task: Task, job: &str, word: Option<(&str, &str)>) -> Result<Self> {
        Self::spawn(task, &["--job", job], word)
    }

    fn spawn(task: Task, arguments: &[&str], word: Option<(&str, &str)>) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find the mmzap program itself")?;
        let mut process = Command::new(program)
            .arg(COMMAND)
            .arg(task.name())
            .args(arguments)
            .envs(word)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a second mmzap process")?;
        let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("a process was started without its pipes");
        };
        Ok(Child {
            process,
            stdin,
            stdout,
        })
    }

    pub fn wait_until_ready(&mut self) -> Result<()> {
        self.expect(READY, "before its memory was ready")
    }

    pub fn go(&mut self) -> Result<()> {
        self.stdin
            .write_all(&[GO])
            .context("cannot tell the process to begin")
    }

    pub fn wait_for_answer(&mut self) -> Result<()> {
        self.expect(DONE, "before it was done")
    }

    fn expect(&mut self, wanted: u8, when: &str) -> Result<()> {
        let mut byte = [0];
        match self.stdout.read_exact(&mut byte) {
            Ok(()) if byte[0] == wanted => Ok(()),
            _ => {
                let status = self.process.wait().context("cannot wait for a process")?;
                bail!("a process of the bench ended {when}: {status}");
            }
        }
    }

    /// All that is left on its stdout.
    pub fn read_to_end(&mut self) -> Result<String> {
        let mut text = String::new();
        self.stdout
            .read_to_string(&mut text)
            .context("cannot read what a process of the bench printed")?;
        Ok(text)
    }

    /// Whether it has ended although nobody told it to.
    pub fn has_ended(&mut self) -> Result<bool> {
        let status = self.process.try_wait();
        Ok(status.context("cannot look after a process")?.is_some())
    }

    pub fn wait(mut self) -> Result<ExitStatus> {
        self.process.wait().context("cannot wait for a process")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // After a normal end both do nothing.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
