//! How many threads pay.
//!
//! Pure: finished batches go in, `max_active` comes out. More threads are not
//! always faster (the published experiment is best at 8 of 72 cores; paging
//! out from inside a process is best at 1), and what is best depends on the
//! machine, the operation and who else is busy.
//!
//! The controller stands on one rung of a ladder of widths and now and then
//! tries a neighbour. Each rung keeps what was seen on it: the bytes b of
//! batches and the seconds t that threads spent on them, so that w threads do
//! w·Σb/Σt. (The mean of the rates b/t would count a fast thread, which brings
//! more batches, above a slow one beside it.) A move needs more evidence than
//! noise would give.

use std::{sync::Mutex, time::Duration};

use crate::operation::Operation;

/// Where a job begins whose best width nobody knows: the published curve is
/// within 2 % of its best from here on, and few machines have it lower.
const START: usize = 4;

/// How much more a wider rung must do to be worth its threads, and how little
/// less a narrower one may do.
const GAIN: f64 = 1.05;

/// Batches of one width are taken to differ by this part of their mean.
const NOISE: f64 = 0.25;

/// Standard errors beyond which a wider rung is believed to gain.
const SURE_TO_WIDEN: f64 = 2.0;

/// And a narrower one to lose nothing: a mistake is cheap and soon undone.
const SURE_TO_NARROW: f64 = 1.0;

/// And any rung to be no use.
const SURE_TO_STOP: f64 = 2.0;

/// Samples of a rung count up to this many: the mean follows a slow change.
const MEMORY: f64 = 256.0;

/// After this many batches what was seen on a rung counts half.
const HALF_LIFE: f64 = 256.0;

/// Samples on a rung before a neighbour is tried.
const PATIENCE: u32 = 8;

/// Patience doubles with each trial that was no use, up to this.
const PATIENCE_MAX: u32 = 64;

/// Samples of one trial that brings no decision.
const TRIAL: u32 = 16;

/// And of one in which a helper does not finish its first.
const TRIAL_MAX: u32 = 128;

/// Batches for which a neighbour that was no use is left alone, in this job
/// and the next ones; then the machine may have changed. Twice as many each
/// time that it is no use again, and more with the square of what a trial
/// costs: two threads that page out do a third of what one does.
const REST: u64 = 256;
const REST_MAX: u64 = 1024;
const REST_DEAR_MAX: u64 = 8192;

/// How long neighbours rest at most when the work has become another.
const REST_AFTER_SHIFT: u64 = 64;

/// The pace of the last samples beside that of all: apart by this much, the
/// work is another.
const SHIFT: f64 = 0.4;

/// Those last samples: so many that one thread whose CPU is taken away for
/// some periods does not look like other work.
const RECENT: f64 = 32.0;

/// Finds the width with which one kind of work goes fastest.
#[derive(Clone, Debug)]
pub(crate) struct Tuner {
    rungs: Vec<Rung>,
    /// The rung that is best by what is known.
    settled: usize,
    trial: Option<Trial>,
    /// Samples on the settled rung since the last trial.
    waited: u32,
    patience: u32,
    /// The last few batches on the settled rung.
    recent: Seen,
    /// Batches so far.
    now: u64,
    /// Batches since one was seen at the width asked for.
    missed: usize,
    /// Threads did not come: what is found says nothing about the machine.
    deserted: bool,
}

#[derive(Clone, Copy, Debug)]
struct Rung {
    width: usize,
    seen: Seen,
    /// When the last batch of this width ended.
    last: u64,
    /// Not tried before this batch.
    rests_until: u64,
    /// How long the last rest was.
    rest: u64,
}

/// What was seen of one width.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    samples: f64,
    bytes: f64,
    /// Of each thread by itself.
    seconds: f64,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    rung: usize,
    samples: u32,
    /// Those of helpers.
    helpers: usize,
    seen: Seen,
}

/// What a comparison with the settled rung says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Better,
    NoUse,
    Unknown,
}

impl Tuner {
    /// A tuner for widths up to `upper`, which begins at `start`.
    pub(crate) fn new(upper: usize, start: usize) -> Self {
        let upper = upper.max(1);
        let mut rungs: Vec<Rung> = std::iter::successors(Some(1_usize), |w| w.checked_mul(2))
            .take_while(|width| *width < upper)
            .chain([upper])
            .map(Rung::new)
            .collect();
        rungs.dedup_by_key(|rung| rung.width);
        let settled = rungs
            .iter()
            .rposition(|rung| rung.width <= start)
            .unwrap_or(0);
        Self {
            rungs,
            settled,
            trial: None,
            waited: 0,
            patience: PATIENCE,
            recent: Seen::default(),
            now: 0,
            missed: 0,
            deserted: false,
        }
    }

    /// How many threads should work now.
    pub(crate) fn width(&self) -> usize {
        self.rungs[self.standing()].width
    }

    /// The most threads that it can come to ask for.
    pub(crate) fn upper(&self) -> usize {
        self.rungs.last().map_or(1, |rung| rung.width)
    }

    /// The width that is best by what is known.
    pub(crate) fn settled(&self) -> usize {
        self.rungs[self.settled].width
    }

    /// Whether one thread works, and no second one is about to be tried:
    /// batches may be as long as one thread likes them.
    pub(crate) fn stays_at_one(&self) -> bool {
        let second = self.rungs.get(1);
        self.standing() == 0
            && second.is_none_or(|second| second.rests_until > self.now + REST_AFTER_SHIFT)
    }

    /// Told of a finished batch, and of the number of threads that were busy
    /// while it ran; answers with the width from now on.
    ///
    /// `busy` is `None` if it changed meanwhile.
    pub(crate) fn sample(
        &mut self,
        bytes: usize,
        took: Duration,
        busy: Option<usize>,
        by_helper: bool,
    ) -> usize {
        self.now += 1;
        let standing = self.standing();
        let seconds = took.as_secs_f64();
        if seconds > 0.0
            && bytes > 0
            && let Some(busy) = busy
            && let Some(rung) = self.rungs.iter().position(|rung| rung.width == busy)
        {
            self.note(rung, bytes as f64, seconds);
            if rung == standing {
                self.missed = 0;
                self.judge(bytes as f64, seconds, by_helper);
                return self.width();
            }
        }
        self.missed += 1;
        // Threads that do not come cannot be waited for.
        if self.missed > 32 + 4 * self.rungs[standing].width {
            self.missed = 0;
            self.give_up(standing, busy.unwrap_or(1));
        }
        self.width()
    }

    fn standing(&self) -> usize {
        self.trial.map_or(self.settled, |trial| trial.rung)
    }

    fn note(&mut self, index: usize, bytes: f64, seconds: f64) {
        if index == self.settled && self.trial.is_none() {
            self.recent.add(bytes, seconds, RECENT);
            let known = &self.rungs[index].seen;
            let enough = self.recent.samples >= RECENT - 1.0;
            if enough && (self.recent.pace() / known.pace() - 1.0).abs() > SHIFT {
                self.forget();
            }
        }
        let rung = &mut self.rungs[index];
        rung.seen.fade(rung.last, self.now);
        rung.seen.add(bytes, seconds, MEMORY);
        rung.last = self.now;
    }

    /// Other work: nothing of what was seen counts. What showed it is half of
    /// the old.
    fn forget(&mut self) {
        for rung in &mut self.rungs {
            rung.seen = Seen::default();
            rung.rests_until = rung.rests_until.min(self.now + REST_AFTER_SHIFT);
        }
        self.recent = Seen::default();
        self.patience = PATIENCE;
        self.waited = 0;
    }

    fn judge(&mut self, bytes: f64, seconds: f64, by_helper: bool) {
        match self.trial.as_mut() {
            Some(trial) => {
                trial.samples += 1;
                trial.helpers += usize::from(by_helper);
                trial.seen.add(bytes, seconds, MEMORY);
                let trial = *trial;
                // The batches of slow helpers come last.
                let complete =
                    trial.helpers + 1 >= self.rungs[trial.rung].width || trial.samples >= TRIAL_MAX;
                // What was seen in earlier trials was other work.
                let known = &self.rungs[trial.rung].seen;
                if complete && (trial.seen.pace() / known.pace() - 1.0).abs() > SHIFT {
                    self.end_trial();
                    self.forget();
                    return;
                }
                match self.compare(trial.rung) {
                    Verdict::Better if complete => {
                        self.settled = trial.rung;
                        self.patience = PATIENCE;
                        self.recent = Seen::default();
                        self.end_trial();
                    }
                    Verdict::NoUse => {
                        self.patience = (self.patience * 2).min(PATIENCE_MAX);
                        let dear = self.rungs[self.settled].rate() / self.rungs[trial.rung].rate();
                        self.rungs[trial.rung].rest_from(self.now, dear);
                        self.end_trial();
                    }
                    _ if complete && trial.samples >= TRIAL => self.end_trial(),
                    _ => {}
                }
            }
            None => {
                self.waited += 1;
                if self.waited >= self.patience
                    && let Some(rung) = self.candidate()
                {
                    self.trial = Some(Trial {
                        rung,
                        samples: 0,
                        helpers: 0,
                        seen: Seen::default(),
                    });
                }
            }
        }
    }

    fn end_trial(&mut self) {
        self.trial = None;
        self.waited = 0;
    }

    /// A neighbour of which something can be learnt: the one known less.
    fn candidate(&self) -> Option<usize> {
        let neighbours = [self.settled.checked_sub(1), Some(self.settled + 1)];
        neighbours
            .into_iter()
            .flatten()
            .filter(|index| {
                let rung = self.rungs.get(*index);
                rung.is_some_and(|rung| rung.rests_until <= self.now)
            })
            .filter(|index| {
                self.compare(*index) != Verdict::NoUse
                    || self.now - self.rungs[*index].last > REST_MAX
            })
            .min_by(|a, b| {
                let known = |index: &usize| self.rungs[*index].known(self.now);
                known(a).total_cmp(&known(b))
            })
    }

    fn compare(&self, other: usize) -> Verdict {
        let (here, there) = (&self.rungs[self.settled], &self.rungs[other]);
        let (known_here, known_there) = (here.known(self.now), there.known(self.now));
        if known_here < 1.0 || known_there < 1.0 {
            return Verdict::Unknown;
        }
        let ratio = there.rate() / here.rate();
        let error = NOISE * (1.0 / known_here + 1.0 / known_there).sqrt();
        let (enough, sure) = if there.width > here.width {
            (GAIN, SURE_TO_WIDEN)
        } else {
            (1.0 / GAIN, SURE_TO_NARROW)
        };
        if ratio - sure * error > enough {
            Verdict::Better
        } else if ratio + SURE_TO_STOP * error < enough {
            Verdict::NoUse
        } else {
            Verdict::Unknown
        }
    }

    /// The width of `standing` cannot be had: nothing above what was seen is,
    /// for a while.
    fn give_up(&mut self, standing: usize, seen: usize) {
        self.end_trial();
        self.deserted = true;
        let below = self
            .rungs
            .iter()
            .rposition(|rung| rung.width <= seen)
            .unwrap_or(0)
            .min(standing.saturating_sub(1));
        for rung in &mut self.rungs[below + 1..] {
            rung.rest_from(self.now, 1.0);
        }
        if self.settled > below {
            self.settled = below;
            self.recent = Seen::default();
        }
    }
}

impl Rung {
    fn new(width: usize) -> Self {
        Self {
            width,
            seen: Seen::default(),
            last: 0,
            rests_until: 0,
            rest: 0,
        }
    }

    /// Bytes per second of all threads together.
    fn rate(&self) -> f64 {
        self.width as f64 * self.seen.pace()
    }

    /// Is left alone for a while; a trial of it costs `dear` times the work.
    fn rest_from(&mut self, now: u64, dear: f64) {
        let wish = (REST as f64 * dear.max(1.0).powi(2)) as u64;
        // One trial can be wrong, and is not believed for ever.
        let most = (self.rest * 4).clamp(REST_MAX, REST_DEAR_MAX);
        self.rest = wish.max((self.rest * 2).min(REST_MAX)).clamp(REST, most);
        self.rests_until = now + self.rest;
    }

    /// How many samples what was seen is worth now.
    fn known(&self, now: u64) -> f64 {
        self.seen.samples * faded(self.last, now)
    }
}

impl Seen {
    fn add(&mut self, bytes: f64, seconds: f64, memory: f64) {
        let kept = ((memory - 1.0) / self.samples.max(1.0)).min(1.0);
        self.scale(kept);
        self.samples += 1.0;
        self.bytes += bytes;
        self.seconds += seconds;
    }

    fn fade(&mut self, last: u64, now: u64) {
        self.scale(faded(last, now));
    }

    fn scale(&mut self, by: f64) {
        self.samples *= by;
        self.bytes *= by;
        self.seconds *= by;
    }

    /// Bytes per second of one thread.
    fn pace(&self) -> f64 {
        self.bytes / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// What is left of evidence from batch `last` at batch `now`.
fn faded(last: u64, now: u64) -> f64 {
    (-((now - last) as f64) / HALF_LIFE).exp2()
}

/// What the last job of each operation has found out.
static FOUND: [Mutex<Option<Tuner>>; Operation::COUNT] =
    [const { Mutex::new(None) }; Operation::COUNT];

/// A tuner that begins where the last job of this operation ended.
pub(crate) fn begin(operation: Operation, upper: usize) -> Tuner {
    // Not waited for: in the child of a fork, whoever held it may be gone.
    if let Ok(found) = FOUND[operation.index()].try_lock()
        && let Some(tuner) = found.as_ref()
        && tuner.upper() == upper.max(1)
    {
        return tuner.clone();
    }
    let start = match operation {
        // Each 32 pages paged out interrupt every CPU of the process.
        Operation::PageOut => 1,
        _ => START,
    };
    Tuner::new(upper, start)
}

/// Keeps what a job has found for the next one.
pub(crate) fn remember(operation: Operation, mut tuner: Tuner) {
    if !tuner.deserted && tuner.rungs[tuner.settled].seen.samples >= f64::from(PATIENCE) {
        tuner.end_trial();
        tuner.missed = 0;
        if let Ok(mut found) = FOUND[operation.index()].try_lock() {
            *found = Some(tuner);
        }
    }
}

#[cfg(test)]
mod tests;
