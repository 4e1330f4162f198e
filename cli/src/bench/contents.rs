//! Contents that a swap device of compressed memory takes as it takes those of
//! programs: they shrink to less than a third, and no page is one value all over,
//! which such devices store for nothing.

use std::thread;

use anyhow::{Result, anyhow, bail};

use super::region::populating_threads;
use crate::sys::{self, HUGE_PAGE, Mapping};

/// One of so many words looks random, the rest of a page repeats itself.
const RANDOM_SHARE: usize = 4;

/// Fills every page, with several threads.
pub fn fill(mapping: &Mapping) -> Result<()> {
    each_word(mapping, |_, word, value| {
        // SAFETY: `each_word` hands out words of the mapping, which is writable,
        // each to one thread.
        unsafe { word.write(value) };
        Ok(())
    })
}

/// Fails unless every page holds what `fill` wrote.
pub fn check(mapping: &Mapping) -> Result<()> {
    each_word(mapping, |page, word, value| {
        // SAFETY: as above; nobody writes meanwhile.
        if unsafe { word.read() } != value {
            bail!("page {page} of the memory came back with other contents");
        }
        Ok(())
    })
}

/// The words of one page, without an end.
struct Words {
    state: u64,
    page: u64,
    index: usize,
    random: usize,
}

impl Words {
    fn of(page: usize) -> Self {
        let page = page as u64;
        Words {
            // Never zero, from which xorshift would not get away.
            state: page.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            page,
            index: 0,
            random: sys::page_size() / 8 / RANDOM_SHARE,
        }
    }
}

impl Iterator for Words {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.index += 1;
        if self.index > self.random {
            return Some(self.page);
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        Some(self.state)
    }
}

/// Calls `work` with each word, the number of its page and the value that belongs there.
fn each_word(
    mapping: &Mapping,
    work: impl Fn(usize, *mut u64, u64) -> Result<()> + Sync,
) -> Result<()> {
    let (start, len) = mapping.as_raw();
    let start = start as usize;
    let page = sys::page_size();
    let share = len
        .div_ceil(populating_threads())
        .next_multiple_of(HUGE_PAGE.max(page));
    let work = &work;
    let part = move |from: usize| -> Result<()> {
        for offset in (from..len.min(from + share)).step_by(page) {
            let number = offset / page;
            let words = (start + offset..start + offset + page).step_by(8);
            for (word, value) in words.zip(Words::of(number)) {
                work(number, word as *mut u64, value)?;
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let crew: Vec<_> = (0..len)
            .step_by(share)
            .map(|from| thread::Builder::new().spawn_scoped(scope, move || part(from)))
            .collect();
        crew.into_iter().try_for_each(|thread| {
            thread?
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a thread that filled memory failed")))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_is_recognised_and_a_change_is_noticed() {
        let mapping = Mapping::anonymous(3 * HUGE_PAGE, HUGE_PAGE).expect("6 MiB");
        fill(&mapping).expect("filled");
        check(&mapping).expect("as filled");
        let (start, len) = mapping.as_raw();
        // SAFETY: the last byte of the mapping.
        unsafe { start.add(len - 1).write_volatile(0xff) };
        let error = check(&mapping).expect_err("changed").to_string();
        assert!(error.contains("page 1535"), "{error}");
    }

    #[test]
    fn no_page_is_one_value_all_over() {
        for page in [0, 1, 77] {
            let words: Vec<u64> = Words::of(page).take(sys::page_size() / 8).collect();
            assert_ne!(words.first(), words.last());
        }
    }
}
