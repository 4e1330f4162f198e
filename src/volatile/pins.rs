//! Who holds which page, and what is known of it.
//!
//! Pure: no memory is touched here. A page is volatile, pinned by some readers
//! or by one writer, or *moving* from one to the other, which belongs to the
//! thread that moves it.

use std::ops::Range;

/// Pages, by number.
pub(super) type Pages = Range<usize>;

/// How pages are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Read,
    Write,
}

/// Why pages cannot be pinned now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Not {
    /// Others hold one of them in a way that does not go with it.
    Held,
    /// One of them is moving; not for long.
    Yet,
}

/// What becomes of the contents when a writer leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    Stay,
    Go,
}

/// Pages that move together, and whether there was nothing in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) pages: Pages,
    pub(super) empty: bool,
}

#[derive(Clone, Copy)]
struct Page {
    state: State,
    /// Nothing was written since it was new or purged: it reads zero.
    empty: bool,
    /// Tells the time at which it became volatile from others.
    epoch: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Volatile,
    Moving,
    Read(u32),
    Written,
}

pub(super) struct Pins(Vec<Page>);

impl Pins {
    /// So many pages, volatile and empty; `None` without memory for the notes.
    pub(super) fn new(count: usize) -> Option<Self> {
        let page = Page {
            state: State::Volatile,
            empty: true,
            epoch: 0,
        };
        let mut pages = Vec::new();
        pages.try_reserve_exact(count).ok()?;
        pages.resize(count, page);
        Some(Self(pages))
    }

    /// Begins to pin. Those that are volatile are moving from now on, and are
    /// the answer; [`end_pin`](Self::end_pin) comes next.
    pub(super) fn begin_pin(&mut self, pages: Pages, hold: Hold) -> Result<Vec<Run>, Not> {
        let wanted = &mut self.0[pages.clone()];
        let mut held = false;
        for page in wanted.iter() {
            match page.state {
                State::Moving => return Err(Not::Yet),
                State::Volatile => {}
                State::Read(count) => held |= hold == Hold::Write || count == u32::MAX,
                State::Written => held = true,
            }
        }
        if held {
            return Err(Not::Held);
        }
        let mut runs = Vec::new();
        for (page, index) in wanted.iter_mut().zip(pages) {
            if let State::Read(count) = &mut page.state {
                *count += 1;
            } else {
                page.state = State::Moving;
                push(&mut runs, index, page.empty);
            }
        }
        Ok(runs)
    }

    /// The pages of `runs` are solid; those of `purged` had lost what was in them.
    pub(super) fn end_pin(&mut self, runs: &[Run], hold: Hold, purged: &[usize]) {
        for page in self.each(runs) {
            page.state = match hold {
                Hold::Read => State::Read(1),
                Hold::Write => State::Written,
            };
        }
        for index in purged {
            self.0[*index].empty = true;
        }
    }

    /// The empty ones of some pages.
    pub(super) fn empty(&self, pages: Pages) -> Vec<Pages> {
        let mut runs = Vec::new();
        for index in pages {
            if self.0[index].empty {
                push(&mut runs, index, true);
            }
        }
        runs.into_iter().map(|run| run.pages).collect()
    }

    /// Begins to unpin. Those that nobody else holds are moving from now on, and
    /// are the answer; [`end_unpin`](Self::end_unpin) comes next.
    pub(super) fn begin_unpin(&mut self, pages: Pages, contents: Contents) -> Vec<Run> {
        let mut runs = Vec::new();
        for index in pages {
            let page = &mut self.0[index];
            match &mut page.state {
                State::Read(count) if *count > 1 => *count -= 1,
                state => {
                    if *state == State::Written {
                        page.empty = contents == Contents::Go;
                    }
                    *state = State::Moving;
                    push(&mut runs, index, page.empty);
                }
            }
        }
        runs
    }

    /// The pages of `runs` are volatile, from now on and since `epoch`.
    pub(super) fn end_unpin(&mut self, runs: &[Run], epoch: u32) {
        for page in self.each(runs) {
            page.state = State::Volatile;
            page.epoch = epoch;
        }
    }

    /// Whether a page has been volatile, with something in it, since that epoch.
    pub(super) fn is_volatile_since(&self, page: usize, epoch: u32) -> bool {
        let page = self.0[page];
        page.state == State::Volatile && !page.empty && page.epoch == epoch
    }

    /// Begins to empty volatile pages: at most `most` of `pages` that have been
    /// volatile since `epoch` are moving from now on, and are the answer.
    pub(super) fn begin_purge(&mut self, pages: Pages, epoch: u32, most: usize) -> Vec<Run> {
        let mut runs = Vec::new();
        let chosen = pages.filter(|index| self.is_volatile_since(*index, epoch));
        for index in chosen.take(most).collect::<Vec<_>>() {
            self.0[index].state = State::Moving;
            push(&mut runs, index, false);
        }
        runs
    }

    /// What was in the pages of `runs` is gone.
    pub(super) fn end_purge(&mut self, runs: &[Run]) {
        for page in self.each(runs) {
            page.state = State::Volatile;
            page.empty = true;
        }
    }

    /// Pages that are moving although nobody moves them: in the child of a fork
    /// that happened meanwhile. They are volatile and empty from now on.
    pub(super) fn abandon_moving(&mut self) -> Vec<Pages> {
        let mut runs = Vec::new();
        for (index, page) in self.0.iter_mut().enumerate() {
            if page.state == State::Moving {
                page.state = State::Volatile;
                page.empty = true;
                push(&mut runs, index, true);
            }
        }
        runs.into_iter().map(|run| run.pages).collect()
    }

    fn each(&mut self, runs: &[Run]) -> impl Iterator<Item = &mut Page> {
        let mut rest = &mut self.0[..];
        let mut at = 0;
        runs.iter().flat_map(move |run| {
            let (_, after) = std::mem::take(&mut rest).split_at_mut(run.pages.start - at);
            let (these, after) = after.split_at_mut(run.pages.len());
            (rest, at) = (after, run.pages.end);
            these
        })
    }
}

fn push(runs: &mut Vec<Run>, index: usize, empty: bool) {
    match runs.last_mut() {
        Some(last) if last.pages.end == index && last.empty == empty => last.pages.end += 1,
        _ => runs.push(Run {
            pages: index..index + 1,
            empty,
        }),
    }
}

#[cfg(test)]
#[allow(
    clippy::single_range_in_vec_init,
    reason = "lists of runs, of which there is one"
)]
mod tests;
