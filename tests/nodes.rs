//! Several memory nodes: helpers stay on the CPUs of one, and free what lies
//! there before they free what lies elsewhere.
//!
//! Who freed what is the kernel's word: a trace of madvise(2) names the thread,
//! the CPU and the address of every call.

mod support;

use std::{
    collections::BTreeMap,
    fs, io, panic,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use mmzap::{Operation, Report, Teardown};
use support::{memory::*, settings::Setting, sys};

const LEN: usize = 512 * MIB;
const HALF: usize = LEN / 2;

/// A node that has CPUs and memory.
struct Node {
    number: usize,
    cpus: Vec<usize>,
}

/// The kernel's way to write a list of numbers: `0-3,8`.
fn listed(path: &str) -> Vec<usize> {
    let list = fs::read_to_string(path).unwrap_or_default();
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let parts = list.trim().split(',').filter(|part| !part.is_empty());
    parts
        .flat_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            number(first)..=number(last)
        })
        .collect()
}

fn all_nodes() -> Vec<Node> {
    let room = "/sys/devices/system/node";
    listed(&format!("{room}/has_memory"))
        .into_iter()
        .map(|number| Node {
            number,
            cpus: listed(&format!("{room}/node{number}/cpulist")),
        })
        .filter(|node| !node.cpus.is_empty())
        .collect()
}

impl Node {
    fn free_bytes(&self) -> usize {
        let path = format!("/sys/devices/system/node/node{}/meminfo", self.number);
        let text = fs::read_to_string(path).expect("meminfo of a node");
        let mut words = text.split_whitespace().skip_while(|w| *w != "MemFree:");
        let kib: usize = words.nth(1).and_then(|w| w.parse().ok()).expect("MemFree");
        kib * 1024
    }

    /// Does something on a thread that keeps to this node's CPUs.
    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let answer = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.bind_this_thread();
                work()
            });
            thread.join()
        });
        answer.unwrap_or_else(|panic| panic::resume_unwind(panic))
    }

    fn bind_this_thread(&self) {
        let cpus: Vec<_> = self.cpus.iter().map(usize::to_string).collect();
        let done = Command::new("taskset")
            .args(["-p", "-c", &cpus.join(","), &this_thread().to_string()])
            .output();
        let done = support::needs("taskset", done);
        if !done.status.success() {
            let why = String::from_utf8_lossy(&done.stderr).into_owned();
            support::skip(format_args!("node {} is out of reach: {why}", self.number));
        }
    }
}

fn this_thread() -> usize {
    let link = fs::read_link("/proc/thread-self").expect("/proc/thread-self");
    let tid = link
        .file_name()
        .and_then(|name| name.to_str()?.parse().ok());
    tid.expect("a thread's number")
}

/// Pages of the mapping at `addr` on each node.
fn pages_on(addr: usize, node: usize) -> usize {
    let text = fs::read_to_string("/proc/self/numa_maps").expect("numa_maps");
    let start = format!("{addr:08x} ");
    let line = text.lines().find(|line| line.starts_with(&start));
    let on_node = format!("N{node}=");
    line.expect("the mapping")
        .split_whitespace()
        .find_map(|word| word.strip_prefix(&on_node)?.parse().ok())
        .unwrap_or(0)
}

/// Memory of which the first half lies on the first node, the second on the
/// second.
fn halves(nodes: &[Node; 2]) -> usize {
    for node in nodes {
        if node.free_bytes() < HALF + 64 * MIB {
            support::skip(format_args!("node {} has no room", node.number));
        }
    }
    let addr = anonymous(LEN);
    // A page lies where the thread ran that touched it first.
    nodes[0].run(|| fill(addr, HALF));
    nodes[1].run(|| fill(addr + HALF, HALF));
    for node in nodes {
        let pages = pages_on(addr, node.number);
        // The kernel may take a page elsewhere now and then.
        assert!(pages.abs_diff(HALF / PAGE) < 1024, "{pages} on a node");
    }
    addr
}

/// A call of madvise(2).
struct Call {
    thread: usize,
    cpu: usize,
    addr: usize,
    len: usize,
}

/// A trace of the calls that discard in a range, in the order in which they
/// were made.
struct Trace(PathBuf);

impl Trace {
    fn of(addr: usize, len: usize) -> io::Result<Self> {
        let name = format!("mmzap-test-{}", std::process::id());
        let room = Path::new("/sys/kernel/tracing/instances").join(name);
        fs::create_dir(&room)?;
        let this = Self(room);
        let event = this.0.join("events/syscalls/sys_enter_madvise");
        let end = addr + len;
        let discards = format!("behavior == 4 && start >= {addr:#x} && start < {end:#x}");
        fs::write(event.join("filter"), discards)?;
        fs::write(this.0.join("trace_clock"), "counter")?;
        fs::write(event.join("enable"), "1")?;
        Ok(this)
    }

    fn calls(&self) -> Vec<Call> {
        let text = fs::read_to_string(self.0.join("trace")).expect("a trace");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| Call::parse(line).unwrap_or_else(|| panic!("a call: {line}")))
            .collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("{} is left: {error}", self.0.display());
        }
    }
}

impl Call {
    /// `mmzap-93  [001] .....  12: sys_madvise(start: 1000, len_in: 2000, behavior: 4)`
    fn parse(line: &str) -> Option<Self> {
        let (who, rest) = line.split_once(" [")?;
        let (cpu, rest) = rest.split_once(']')?;
        let hex = |name| {
            let (value, _) = rest.split_once(name)?.1.split_once(',')?;
            usize::from_str_radix(value.trim_start_matches("0x"), 16).ok()
        };
        Some(Self {
            thread: who.trim_end().rsplit_once('-')?.1.parse().ok()?,
            cpu: cpu.parse().ok()?,
            addr: hex("start: ")?,
            len: hex("len_in: ")?,
        })
    }
}

#[track_caller]
fn all_freed(addr: usize, report: &Report, rss_before: usize) {
    assert!(report.failures().is_empty(), "{:?}", report.failures());
    assert_eq!((report.bytes_done, accounted(report)), (LEN, LEN));
    assert_eq!(present_pages(addr, LEN), 0);
    let grown = anonymous_rss_bytes().saturating_sub(rss_before);
    assert!(grown < 16 * MIB, "{grown} bytes are still resident");
    assert_eq!(kept_pages(addr, LEN), 0);
}

fn two_nodes() -> [Node; 2] {
    support::needs_root();
    let mut nodes = all_nodes();
    if nodes.len() < 2 {
        support::skip("needs two memory nodes with CPUs, this machine has one");
    }
    nodes.truncate(2);
    nodes.try_into().ok().expect("two")
}

/// Pages stay where they are put.
fn no_balancing() -> Option<Setting> {
    let path = "/proc/sys/kernel/numa_balancing";
    let there = Path::new(path).exists();
    there.then(|| support::needs(path, Setting::set(path, "0")))
}

/// What a thread freed.
#[derive(Default)]
struct Share {
    /// Where it was.
    nodes: Vec<usize>,
    /// Of which half.
    bytes_of: [usize; 2],
}

/// What each thread freed of two halves at `addr`.
fn shares(calls: &[Call], addr: usize) -> BTreeMap<usize, Share> {
    let all = all_nodes();
    let mut shares = BTreeMap::<usize, Share>::new();
    for call in calls {
        let node = all.iter().find(|node| node.cpus.contains(&call.cpu));
        let share = shares.entry(call.thread).or_default();
        share.nodes.push(node.expect("a node of this CPU").number);
        share.bytes_of[usize::from(call.addr >= addr + HALF)] += call.len;
    }
    for (thread, Share { nodes, bytes_of }) in &mut shares {
        nodes.sort_unstable();
        nodes.dedup();
        let [first, second] = bytes_of.map(|bytes| bytes / MIB);
        println!("thread {thread} on nodes {nodes:?}: {first} MiB and {second} MiB of the halves");
    }
    let freed = shares.values().flat_map(|share| share.bytes_of);
    assert_eq!(freed.sum::<usize>(), LEN);
    shares
}

/// Many small batches, so that there is something to choose from.
fn job_of(width: usize) -> Teardown<'static> {
    Teardown::new(Operation::Discard)
        .max_active(width)
        .batch_bytes(2 * MIB)
}

fn helpers_free_the_memory_of_their_own_node_first() {
    let nodes = two_nodes();
    let _setting = no_balancing();
    let rss_before = anonymous_rss_bytes();
    let addr = halves(&nodes);
    let trace = support::needs("a trace of madvise", Trace::of(addr, LEN));
    let report = run(&mut job_of(2 * all_nodes().len()), &[(addr, LEN)]);
    let calls = trace.calls();
    all_freed(addr, &report, rss_before);
    let (mut own, mut foreign) = (0, 0);
    for (thread, share) in shares(&calls, addr) {
        if thread == this_thread() {
            continue; // the caller, which may run anywhere
        }
        let [at] = share.nodes[..] else {
            panic!("a helper was on the nodes {:?}", share.nodes);
        };
        if let Some(half) = nodes.iter().position(|node| node.number == at) {
            own += share.bytes_of[half];
            foreign += share.bytes_of[1 - half];
        }
    }
    println!(
        "{} batches, {} by {} helpers: {} MiB of their own nodes, {} MiB of others",
        report.batches,
        report.steals,
        report.helpers,
        own / MIB,
        foreign / MIB
    );
    // At the end of the job they help each other out.
    assert!(
        own > 2 * foreign,
        "{own} bytes of their own, {foreign} others"
    );
    sys::unmap(addr, LEN).unwrap();
}

fn helpers_of_a_caller_that_keeps_to_a_node_stay_there() {
    let nodes = two_nodes();
    let _setting = no_balancing();
    for node in &nodes {
        let rss_before = anonymous_rss_bytes();
        let addr = halves(&nodes);
        let trace = support::needs("a trace of madvise", Trace::of(addr, LEN));
        let report = node.run(|| run(&mut job_of(4), &[(addr, LEN)]));
        let calls = trace.calls();
        all_freed(addr, &report, rss_before);
        for (thread, share) in shares(&calls, addr) {
            assert_eq!(share.nodes, [node.number], "thread {thread}");
        }
        sys::unmap(addr, LEN).unwrap();
    }
}

fn a_job_of_the_width_found_out_is_done_whole() {
    let nodes = two_nodes();
    for _ in 0..3 {
        let rss_before = anonymous_rss_bytes();
        let addr = halves(&nodes);
        let report = run(&mut Teardown::new(Operation::Discard), &[(addr, LEN)]);
        println!(
            "width {} in the end, {} batches, {} by helpers, {:?}",
            report.max_active, report.batches, report.steals, report.wall
        );
        all_freed(addr, &report, rss_before);
        sys::unmap(addr, LEN).unwrap();
    }
}

fn main() {
    support::main(
        named![
            helpers_free_the_memory_of_their_own_node_first,
            helpers_of_a_caller_that_keeps_to_a_node_stay_there,
            a_job_of_the_width_found_out_is_done_whole,
        ],
        &[],
    );
}
