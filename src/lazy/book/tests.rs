use super::*;
use proptest::prelude::*;

const PAGE: usize = 4096;

fn book(slots: usize) -> Book {
    let mut book = Book::new();
    book.equip(Vec::leak(vec![Slot::UNUSED; slots]), PAGE);
    book
}

fn run(page: usize, pages: usize) -> PageRange {
    PageRange::new(page * PAGE, pages * PAGE, PAGE).expect("pages")
}

#[test]
fn bins_are_where_their_sizes_say() {
    for pages in 1..100_000 {
        let bin = bin(pages);
        assert!(bin_pages(bin) <= pages, "{pages}");
        assert!(bin_pages(bin + 1) > pages, "{pages}");
        let rounded = rounded_len(pages * PAGE, PAGE).expect("a size") / PAGE;
        assert!(
            rounded >= pages && rounded * 4 <= pages * 5 + 4,
            "{pages}: {rounded}"
        );
    }
    assert_eq!(rounded_len(usize::MAX, PAGE), None);
    assert!(rounded_len(usize::MAX / 4, PAGE).is_some());
}

#[test]
fn hot_before_lazy_and_the_newest_first() {
    let mut book = book(8);
    assert!(book.put(run(0, 16), State::Lazy, 1));
    assert!(book.put(run(100, 16), State::Hot, 2));
    assert!(book.put(run(200, 16), State::Hot, 3));
    assert_eq!(book.take(16 * PAGE), Some((run(200, 16), State::Hot)));
    assert_eq!(book.take(16 * PAGE), Some((run(100, 16), State::Hot)));
    assert_eq!(book.take(16 * PAGE), Some((run(0, 16), State::Lazy)));
    assert_eq!(book.take(16 * PAGE), None);
}

#[test]
fn a_larger_run_is_split_and_one_much_larger_is_spared() {
    let mut book = book(8);
    assert!(book.put(run(0, 24), State::Hot, 1));
    assert_eq!(book.take(8 * PAGE), None);
    assert_eq!(book.take(16 * PAGE), Some((run(0, 16), State::Hot)));
    assert_eq!(book.take(8 * PAGE), Some((run(16, 8), State::Hot)));
}

#[test]
fn a_run_of_any_size_serves_a_request_of_that_size() {
    for pages in 1..200 {
        let mut book = book(2);
        assert!(book.put(run(0, pages), State::Lazy, 1));
        let taken = book.take(pages * PAGE);
        assert_eq!(taken, Some((run(0, pages), State::Lazy)));
    }
}

#[test]
fn the_oldest_go_first_whatever_their_size() {
    let mut book = book(8);
    for (page, pages, since) in [(0, 8, 5), (100, 300, 3), (500, 1, 4)] {
        assert!(book.put(run(page, pages), State::Hot, since));
    }
    assert_eq!(book.oldest_since(State::Hot), Some(3));
    assert_eq!(book.take_oldest(State::Hot, 2), None);
    assert_eq!(book.take_oldest(State::Hot, 4), Some(run(100, 300)));
    assert_eq!(book.take_oldest(State::Hot, 4), Some(run(500, 1)));
    assert_eq!(book.take_oldest(State::Hot, 4), None);
    assert_eq!(book.take_oldest(State::Lazy, u64::MAX), None);
}

#[test]
fn a_full_book_takes_no_more() {
    let mut book = book(2);
    assert!(book.put(run(0, 4), State::Hot, 1));
    assert!(book.put(run(10, 4), State::Clean, 1));
    assert!(!book.put(run(20, 4), State::Hot, 1));
    assert!(book.take(4 * PAGE).is_some());
    assert!(book.put(run(20, 4), State::Hot, 1));
    assert!(!Book::new().put(run(0, 1), State::Hot, 1));
    assert_eq!(Book::new().take(PAGE), None);
}

#[test]
fn runs_that_are_worked_on_keep_their_slots() {
    let mut book = book(3);
    for page in [0, 10, 20] {
        assert!(book.put(run(page, 4), State::Hot, page as u64));
    }
    let batch = book
        .take_batch(|book| book.take_oldest(State::Hot, 10))
        .expect("two runs");
    assert_eq!(batch.bytes(), 8 * PAGE);
    assert!(
        !book.put(run(30, 4), State::Hot, 30),
        "their slots are taken"
    );
    book.put_back(&batch, batch.runs(), State::Lazy, 40);
    assert_eq!(book.bytes(State::Lazy), 8 * PAGE);
    let batch = book
        .take_batch(|book| book.take_oldest(State::Lazy, 40))
        .expect("two runs");
    book.put_back(&batch, std::iter::empty(), State::Lazy, 40);
    assert!(book.put(run(30, 4), State::Hot, 30), "they are free again");
    assert!(book.take_batch(|_| None).is_none());
}

#[derive(Clone, Debug)]
enum Step {
    Free(usize),
    Take(usize),
    Move(usize, usize, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1_usize..300).prop_map(Step::Free),
        (1_usize..300).prop_map(Step::Take),
        (0_usize..3, 0_usize..3, 0_u64..10).prop_map(|(a, b, ago)| Step::Move(a, b, ago)),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    /// No page is ever free twice, lost, or handed out while it is used.
    #[test]
    fn every_page_is_somewhere_once(steps in steps()) {
        let mut book = book(64);
        let (mut next, mut free) = (0, std::collections::BTreeSet::new());
        for (now, step) in steps.into_iter().enumerate() {
            let now = now as u64;
            match step {
                Step::Free(pages) => {
                    let run = run(next, pages);
                    next += pages + 1;
                    if book.put(run, State::Hot, now) {
                        free.extend((run.start()..run.end()).step_by(PAGE));
                    }
                }
                Step::Take(pages) => {
                    if let Some((run, _)) = book.take(pages * PAGE) {
                        prop_assert_eq!(run.len(), pages * PAGE);
                        for page in (run.start()..run.end()).step_by(PAGE) {
                            prop_assert!(free.remove(&page));
                        }
                    }
                }
                Step::Move(from, to, ago) => {
                    let before = now.saturating_sub(ago);
                    let next = |book: &mut Book| book.take_oldest(STATES[from], before);
                    if let Some(batch) = book.take_batch(next) {
                        book.put_back(&batch, batch.runs(), STATES[to], now);
                    }
                }
            }
            let listed: Vec<_> = STATES
                .iter()
                .flat_map(|state| book.runs(*state).collect::<Vec<_>>())
                .flat_map(|run| (run.start()..run.end()).step_by(PAGE))
                .collect();
            prop_assert_eq!(listed.len() * PAGE, STATES.iter().map(|state| book.bytes(*state)).sum::<usize>());
            prop_assert_eq!(listed.len(), free.len());
            prop_assert!(listed.iter().all(|page| free.contains(page)));
        }
    }
}
