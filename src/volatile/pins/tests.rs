use proptest::prelude::*;

use super::*;

const PAGES: usize = 24;

/// One holder, or somebody in the middle of a step.
#[derive(Clone, Debug)]
enum Task {
    Pinning(Pages, Hold, Vec<Run>),
    Holding(Pages, Hold),
    Unpinning(Vec<Run>),
    Purging(Vec<Run>),
}

#[derive(Clone, Debug)]
enum Step {
    Pin(usize, usize, bool),
    /// The next step of one of the tasks; with what it finds or does.
    Go(usize, bool),
    Purge(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..PAGES, 1_usize..8, any::<bool>()).prop_map(|(a, b, c)| Step::Pin(a, b, c)),
        (any::<usize>(), any::<bool>()).prop_map(|(a, b)| Step::Go(a, b)),
        (any::<usize>(), any::<bool>()).prop_map(|(a, b)| Step::Go(a, b)),
        (0..PAGES, 1_usize..20).prop_map(|(a, b)| Step::Purge(a, b)),
    ];
    proptest::collection::vec(step, 1..300)
}

/// The pages that a task moves.
fn moved(task: &Task) -> impl Iterator<Item = usize> {
    let runs = match task {
        Task::Pinning(_, _, runs) | Task::Unpinning(runs) | Task::Purging(runs) => &runs[..],
        Task::Holding(..) => &[],
    };
    runs.iter().flat_map(|run| run.pages.clone())
}

proptest! {
    /// Whatever the order of steps: no page is moved by two, none is moved while
    /// it is held, writers are alone, and a page that was called empty stays so
    /// until a writer leaves.
    #[test]
    fn every_page_has_one_state(steps in steps()) {
        let mut pins = Pins::new(PAGES).expect("memory");
        let mut tasks: Vec<Task> = Vec::new();
        let mut epoch = 0;
        for step in steps {
            match step {
                Step::Pin(start, count, write) => {
                    let pages = start..(start + count).min(PAGES);
                    let hold = if write { Hold::Write } else { Hold::Read };
                    match pins.begin_pin(pages.clone(), hold) {
                        Ok(runs) => tasks.push(Task::Pinning(pages, hold, runs)),
                        Err(Not::Yet) => {
                            prop_assert!(tasks.iter().flat_map(moved).any(|page| pages.contains(&page)));
                        }
                        Err(Not::Held) => prop_assert!(tasks.iter().any(|task| matches!(
                            task,
                            Task::Holding(held, how) | Task::Pinning(held, how, _)
                                if held.start < pages.end && pages.start < held.end
                                    && (write || *how == Hold::Write)
                        ))),
                    }
                }
                Step::Go(which, odd) if !tasks.is_empty() => {
                    let index = which % tasks.len();
                    match tasks.swap_remove(index) {
                        Task::Pinning(pages, hold, runs) => {
                            let purged: Vec<usize> = runs
                                .iter()
                                .filter(|run| odd && !run.empty)
                                .flat_map(|run| run.pages.clone())
                                .collect();
                            pins.end_pin(&runs, hold, &purged);
                            let empty: Vec<usize> = pins.empty(pages.clone()).into_iter().flatten().collect();
                            prop_assert!(purged.iter().all(|page| empty.contains(page)));
                            tasks.push(Task::Holding(pages, hold));
                        }
                        Task::Holding(pages, hold) => {
                            let contents = if odd { Contents::Go } else { Contents::Stay };
                            let runs = pins.begin_unpin(pages.clone(), contents);
                            if hold == Hold::Write {
                                prop_assert_eq!(&runs, &[Run { pages, empty: odd }]);
                            }
                            tasks.push(Task::Unpinning(runs));
                        }
                        Task::Unpinning(runs) => {
                            epoch += 1;
                            pins.end_unpin(&runs, epoch);
                            for run in runs.iter().filter(|run| !run.empty) {
                                prop_assert!(run.pages.clone().all(|page| pins.is_volatile_since(page, epoch)));
                            }
                        }
                        Task::Purging(runs) => {
                            pins.end_purge(&runs);
                            let pages = runs.iter().flat_map(|run| run.pages.clone());
                            prop_assert!(pages.clone().all(|page| pins.empty(page..page + 1) == [page..page + 1]));
                        }
                    }
                }
                Step::Go(..) => {}
                Step::Purge(start, most) => {
                    let runs = pins.begin_purge(start..PAGES, epoch, most);
                    prop_assert!(runs.iter().map(|run| run.pages.len()).sum::<usize>() <= most);
                    tasks.push(Task::Purging(runs));
                }
            }
            let mut moving: Vec<usize> = tasks.iter().flat_map(moved).collect();
            moving.sort_unstable();
            prop_assert!(moving.windows(2).all(|pair| pair[0] != pair[1]), "moved by two");
            for task in &tasks {
                if let Task::Holding(pages, _) = task {
                    prop_assert!(pages.clone().all(|page| !moving.contains(&page)), "held and moved");
                }
            }
        }
    }
}

#[test]
fn what_moved_in_another_process_is_given_up() {
    let mut pins = Pins::new(6).expect("memory");
    let runs = pins.begin_pin(0..2, Hold::Read).expect("free");
    pins.end_pin(&runs, Hold::Read, &[]);
    pins.begin_pin(1..4, Hold::Read).expect("read by both");
    assert_eq!(pins.abandon_moving(), [2..4]);
    assert!(pins.begin_pin(2..6, Hold::Write).is_ok());
    assert!(pins.abandon_moving() == [2..6] && pins.abandon_moving().is_empty());
}
