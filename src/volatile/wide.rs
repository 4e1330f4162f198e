//! Work on the pages of a large range, by several threads.

use std::thread;

use super::pins::Pages;
use crate::{crew::recent_max_active, sys};

/// From this size on. To tag 32 MiB or to take the tags out takes a thread
/// about a millisecond, ten times what it takes to start another one.
pub(super) const BYTES: usize = 32 << 20;

/// Lets `work` have all of `pages`, in parts side by side if they are many.
/// Where no thread can be had the caller does its part.
pub(super) fn each_part<R: Send>(pages: Pages, work: impl Fn(Pages) -> R + Sync) -> Vec<R> {
    let threads = if pages.len() < BYTES / sys::page_bytes() {
        1
    } else {
        recent_max_active()
    };
    if threads == 1 {
        return vec![work(pages)];
    }
    let part = pages.len().div_ceil(threads);
    let parts = |index: usize| {
        let start = (pages.start + index * part).min(pages.end);
        start..(start + part).min(pages.end)
    };
    let work = &work;
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|index| {
                let pages = parts(index);
                let theirs = pages.clone();
                let thread = thread::Builder::new()
                    .name("mmzap-volatile".to_owned())
                    .spawn_scoped(scope, move || work(theirs));
                thread.map_err(|_| pages)
            })
            .collect();
        let mut results = vec![work(parts(0))];
        for other in others {
            results.push(match other {
                Ok(thread) => match thread.join() {
                    Ok(result) => result,
                    Err(panic) => std::panic::resume_unwind(panic),
                },
                Err(pages) => work(pages),
            });
        }
        results
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_all_of_it_in_order() {
        let page = sys::page_bytes();
        for count in [1, 7, BYTES / page, BYTES / page + 3] {
            let parts = each_part(5..5 + count, |part| part);
            let pages: Vec<usize> = parts.into_iter().flatten().collect();
            assert_eq!(pages, (5..5 + count).collect::<Vec<_>>());
        }
    }
}
