//! Which pages became volatile first.

use std::collections::VecDeque;

use super::pins::{Pages, Pins, Run};

/// Entries and pages before the first sweep for what is no longer true.
const SWEPT_FROM: usize = 1024;

/// Pages in the order in which they became volatile. An entry whose pages were
/// pinned since stays until it is met or swept.
#[derive(Default)]
pub(super) struct Order {
    queue: VecDeque<(Pages, u32)>,
    /// Pages of all entries: what a sweep looks at, at most.
    pages: usize,
    /// So many from which on the next sweep pays.
    sweep_at: usize,
}

impl Order {
    /// Pages became volatile at `epoch`.
    pub(super) fn push(&mut self, pages: Pages, epoch: u32, pins: &Pins) {
        if self.pages >= self.sweep_at.max(SWEPT_FROM) {
            self.queue.retain(|(pages, epoch)| {
                pages
                    .clone()
                    .any(|page| pins.is_volatile_since(page, *epoch))
            });
            self.pages = self.queue.iter().map(|(pages, _)| pages.len()).sum();
            self.sweep_at = 2 * self.pages;
        }
        self.pages += pages.len();
        self.queue.push_back((pages, epoch));
    }

    /// Begins to purge the oldest pages, at most `most`: [`Pins::begin_purge`].
    /// `None` if nothing is volatile, or what is has nothing in it.
    pub(super) fn oldest(&mut self, pins: &mut Pins, most: usize) -> Option<Vec<Run>> {
        while let Some((pages, epoch)) = self.queue.pop_front() {
            self.pages -= pages.len();
            let runs = pins.begin_purge(pages.clone(), epoch, most);
            let Some(last) = runs.last() else {
                continue;
            };
            if last.pages.end < pages.end {
                self.pages += pages.end - last.pages.end;
                self.queue.push_front((last.pages.end..pages.end, epoch));
            }
            return Some(runs);
        }
        None
    }
}

#[cfg(test)]
#[allow(
    clippy::single_range_in_vec_init,
    reason = "lists of runs, of which there is one"
)]
mod tests {
    use super::*;
    use crate::volatile::pins::{Contents, Hold};

    /// Writes pages and unpins them.
    fn unpin(order: &mut Order, pins: &mut Pins, pages: Pages, epoch: u32) {
        let runs = pins.begin_pin(pages.clone(), Hold::Write).expect("free");
        pins.end_pin(&runs, Hold::Write, &[]);
        let runs = pins.begin_unpin(pages, Contents::Stay);
        pins.end_unpin(&runs, epoch);
        for run in runs {
            order.push(run.pages, epoch, pins);
        }
    }

    fn purged(order: &mut Order, pins: &mut Pins, most: usize) -> Vec<Pages> {
        let runs = order.oldest(pins, most).unwrap_or_default();
        pins.end_purge(&runs);
        runs.into_iter().map(|run| run.pages).collect()
    }

    #[test]
    fn the_oldest_go_first_and_no_page_twice() {
        let (mut order, mut pins) = (Order::default(), Pins::new(20).expect("memory"));
        unpin(&mut order, &mut pins, 0..8, 1);
        unpin(&mut order, &mut pins, 10..14, 2);
        unpin(&mut order, &mut pins, 2..4, 3); // younger again
        assert_eq!(purged(&mut order, &mut pins, 3), [0..2, 4..5]);
        assert_eq!(purged(&mut order, &mut pins, 100), [5..8]);
        assert_eq!(purged(&mut order, &mut pins, 100), [10..14]);
        assert_eq!(purged(&mut order, &mut pins, 100), [2..4]);
        assert!(purged(&mut order, &mut pins, 100).is_empty());
    }

    #[test]
    fn it_stays_short_however_often_pages_come() {
        let (mut order, mut pins) = (Order::default(), Pins::new(4).expect("memory"));
        for epoch in 1..20_000 {
            unpin(&mut order, &mut pins, 0..1, epoch);
        }
        assert!(order.queue.len() <= SWEPT_FROM, "{}", order.queue.len());
        assert_eq!(purged(&mut order, &mut pins, 9), [0..1]);
    }
}
