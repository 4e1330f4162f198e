//! The pure parts: cutting, sorting and planning, without a kernel.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use mmzap::{
    Operation, PageRange,
    gather::{self, Rules},
    mapping::{Kind, Mapping},
};

const PAGE: usize = 4096;

fn mappings(count: usize) -> Vec<Mapping> {
    (0..count)
        .map(|i| Mapping {
            range: PageRange::new(i * 64 * PAGE, 48 * PAGE, PAGE).expect("pages"),
            kind: Kind::Anonymous,
            page_bytes: PAGE,
            writable: true,
        })
        .collect()
}

/// `count` ranges over `mappings` mappings, in an order that is not sorted.
fn ranges(count: usize, mappings: usize) -> Vec<PageRange> {
    let slots = mappings * 16;
    // A stride that is odd visits every slot of a power of two once.
    (0..count)
        .map(|i| i.wrapping_mul(0x9E37_79B1) % slots)
        .map(|slot| PageRange::new(slot * 4 * PAGE, 2 * PAGE, PAGE).expect("pages"))
        .collect()
}

fn planning(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(10);
    for (range_count, mapping_count) in [(1, 1), (65_536, 1), (1_000_000, 100_000)] {
        let maps = mappings(mapping_count);
        let wanted = ranges(range_count, mapping_count);
        group.throughput(Throughput::Elements(range_count as u64));
        group.bench_function(
            format!("{range_count} ranges, {mapping_count} mappings"),
            |bencher| {
                bencher.iter_batched(
                    || wanted.clone(),
                    |wanted| {
                        let rules = Rules::for_job(
                            Operation::Discard,
                            wanted.len() * 2 * PAGE,
                            wanted.len(),
                            2,
                            true,
                        );
                        gather::plan(wanted, &maps, rules).map(black_box).count()
                    },
                    BatchSize::LargeInput,
                );
            },
        );
    }
    group.finish();
}

fn cutting(criterion: &mut Criterion) {
    criterion.bench_function("cut inward", |bencher| {
        bencher
            .iter(|| PageRange::inward(black_box(0x7fff_1234_5678), black_box(123_456_789), PAGE));
    });
}

criterion_group!(benches, planning, cutting);
criterion_main!(benches);
