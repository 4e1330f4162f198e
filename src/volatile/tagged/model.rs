//! What the kernel, the CPUs and the tags do to each other, in every order.
//!
//! One page, as the kernel has it: an entry of the page table with its dirty bit,
//! a physical page behind it, and what CPUs remember of the entry. Three parties
//! take turns in all possible orders: an owner that unpins (exchange, then
//! MADV_FREE), one that pins, and a reclaimer that goes round and round.
//!
//! From the kernel (6.18): madvise_free_pte_range clears the dirty bit and marks
//! the page lazily freed, and the TLBs are flushed before the call returns;
//! try_to_unmap_one takes the entry away and keeps the table locked until it has
//! decided, by the dirty bit that the entry had. From the CPUs: to set a dirty
//! bit is an atomic access to the entry, which faults if it is not there; a write
//! through an entry remembered as dirty looks at nothing.

const OWN: u64 = 42;
const TAG: u64 = 7;

/// How pages are pinned: ours, and ways that are known to be wrong, which show
/// that the model would notice.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Exchange,
    /// Looks at the tag, and leaves the page clean.
    Look,
    /// Pins while MADV_FREE is still running.
    Early,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Table {
    Absent,
    Present { dirty: bool },
}

#[derive(Clone, Copy)]
struct World {
    way: Way,
    table: Table,
    /// The first word, and whether the rest is what the owner left.
    word: u64,
    rest: bool,
    lazy: bool,
    /// The pinner's CPU remembers the entry as dirty.
    stale: bool,
    /// The reclaimer holds the table's lock, and the dirty bit that it found.
    reclaiming: Option<bool>,
    owner: u8,
    pinner: u8,
    aside: u64,
    found: Option<u64>,
    rounds: u8,
    /// Unpins that are still to come.
    cycles: u8,
    /// What has gone wrong.
    wrong: Option<&'static str>,
}

impl World {
    fn new(way: Way) -> Self {
        Self {
            way,
            table: Table::Present { dirty: true },
            word: OWN,
            rest: true,
            lazy: false,
            // The pinner was the last to write it.
            stale: true,
            reclaiming: None,
            owner: 0,
            pinner: 0,
            aside: 0,
            found: None,
            rounds: 0,
            cycles: 2,
            wrong: None,
        }
    }

    /// A fault in an absent page: a new one. Not while the table is locked.
    fn fault(&mut self) -> bool {
        if self.reclaiming.is_some() {
            return false;
        }
        self.table = Table::Present { dirty: true };
        (self.word, self.rest, self.lazy) = (0, false, false);
        true
    }

    /// The next step of the owner; `false` if it cannot take one now.
    fn own(&mut self) -> bool {
        match self.owner {
            // The region's lock is held by nobody else: plain steps.
            0 => {
                self.aside = std::mem::replace(&mut self.word, TAG);
                self.table = Table::Present { dirty: true };
            }
            1 if self.reclaiming.is_none() => {
                if let Table::Present { dirty } = &mut self.table {
                    (*dirty, self.lazy) = (false, true);
                }
            }
            2 => self.stale = false, // the flush
            // Pinned and looked at: filled in where it was lost, and again.
            3 if self.pinner == 2 && self.cycles > 1 => {
                if self.found != Some(TAG) {
                    if self.table == Table::Absent && !self.fault() {
                        return false;
                    }
                    self.table = Table::Present { dirty: true };
                    (self.word, self.rest) = (OWN, true);
                }
                self.cycles -= 1;
                (self.pinner, self.found, self.stale) = (0, None, true);
                self.owner = 0;
                return true;
            }
            _ => return false,
        }
        self.owner += 1;
        true
    }

    fn pin(&mut self) -> bool {
        let may_begin = match self.way {
            Way::Early => self.owner >= 2,
            _ => self.owner == 3,
        };
        if !may_begin {
            return false;
        }
        match (self.pinner, self.way) {
            (0, Way::Look) => {
                if self.table == Table::Absent && !self.fault() {
                    return false;
                }
                self.found = Some(self.word);
                self.pinner = 2;
                return true;
            }
            // The dirty bit first …
            (0, _) if self.stale => {}
            (0, _) => {
                if self.table == Table::Absent && !self.fault() {
                    return false;
                }
                self.table = Table::Present { dirty: true };
            }
            // … then the word, in whatever page the CPU has in mind.
            (1, _) => {
                self.found = Some(std::mem::replace(&mut self.word, self.aside));
            }
            _ => return false,
        }
        self.pinner += 1;
        true
    }

    fn reclaim(&mut self) -> bool {
        match self.reclaiming {
            None => {
                let Table::Present { dirty } = self.table else {
                    return false;
                };
                if !self.lazy || self.rounds == 3 {
                    return false;
                }
                self.rounds += 1;
                self.reclaiming = Some(dirty);
                self.table = Table::Absent;
            }
            Some(true) => {
                self.table = Table::Present { dirty: true };
                (self.lazy, self.reclaiming) = (false, None);
            }
            Some(false) => {
                // The page is gone with all that is in it.
                if self.pinner == 2 && self.found == Some(TAG) {
                    self.wrong = Some("called kept, and gone");
                }
                (self.word, self.rest) = (0, false);
                self.reclaiming = None;
            }
        }
        true
    }

    /// What is wrong when all is done.
    fn verdict(&self) -> Result<(), String> {
        if let Some(wrong) = self.wrong {
            return Err(wrong.into());
        }
        let found = self.found.ok_or("nobody pinned")?;
        let there = self.table != Table::Absent && self.rest;
        match found {
            TAG if !there => Err("called kept, and gone".into()),
            TAG if self.way != Way::Look && self.word != OWN => {
                Err(format!("its own word is {}", self.word))
            }
            TAG => Ok(()),
            0 if there => Err("called purged, and there".into()),
            0 => Ok(()),
            other => Err(format!("neither tag nor zero: {other}")),
        }
    }
}

/// Goes through all orders of steps; counts those that end, and answers with the
/// first that ends badly.
fn explore(world: World, ended: &mut usize) -> Result<(), String> {
    let mut stuck = true;
    for step in [World::own, World::pin, World::reclaim] {
        let mut next = world;
        if step(&mut next) {
            stuck = false;
            explore(next, ended)?;
        }
    }
    if stuck {
        *ended += 1;
        world.verdict()
    } else {
        Ok(())
    }
}

#[test]
fn an_exchange_has_a_definite_answer_in_every_order() {
    let mut ended = 0;
    assert_eq!(explore(World::new(Way::Exchange), &mut ended), Ok(()));
    assert!(ended > 50, "{ended} orders");
}

#[test]
fn a_look_alone_has_not() {
    let answer = explore(World::new(Way::Look), &mut 0);
    assert_eq!(answer, Err("called kept, and gone".into()));
}

#[test]
fn nor_has_an_exchange_while_the_kernel_still_works() {
    let answer = explore(World::new(Way::Early), &mut 0);
    assert!(answer.is_err(), "{answer:?}");
}
