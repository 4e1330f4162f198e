use super::*;

/// Batches of 64 MiB.
const BATCH: usize = 64 << 20;

const SEEDS: u64 = 1000;

/// Batches of a job of 320 GB in 64 MiB each, nearly.
const JOB: usize = 4000;

/// Bytes per second at a number of threads.
type Curve = fn(usize) -> f64;

/// Noise of a fifth, evenly spread; a generator of Marsaglia's.
struct Noise(u64);

impl Noise {
    fn from(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        0.8 + 0.4 * (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Seconds of the published job at a number of threads; between the points
/// measured, along straight lines.
fn published(width: usize) -> f64 {
    let points = [
        (1, 8.9),
        (2, 5.65),
        (4, 4.84),
        (8, 4.77),
        (16, 4.85),
        (32, 6.21),
    ];
    let after = points.iter().position(|(w, _)| *w >= width).unwrap_or(5);
    let (w1, s1) = points[after];
    let (w0, s0) = points[after.saturating_sub(1)];
    let part = if w1 == w0 {
        0.0
    } else {
        (width - w0) as f64 / (w1 - w0) as f64
    };
    1e9 / (s0 + (s1 - s0) * part)
}

fn linear(width: usize) -> f64 {
    width as f64 * 1e9
}

fn flat(_: usize) -> f64 {
    1e9
}

fn negative(width: usize) -> f64 {
    1e9 * (width as f64).powf(-0.7)
}

/// Feeds `batches` and says how much of the best throughput there was meanwhile.
fn simulate(tuner: &mut Tuner, rate: Curve, batches: usize, noise: &mut Noise) -> f64 {
    let (mut bytes, mut seconds) = (0.0, 0.0);
    for _ in 0..batches {
        let width = tuner.width();
        let took = (width * BATCH) as f64 / (rate(width) * noise.next());
        bytes += BATCH as f64;
        seconds += took / width as f64;
        tuner.sample(BATCH, Duration::from_secs_f64(took), Some(width));
    }
    bytes / seconds
}

fn best(rate: Curve, upper: usize) -> f64 {
    (1..=upper).map(rate).fold(0.0, f64::max)
}

fn settles(rate: Curve, upper: usize, start: usize, fits: impl Fn(usize) -> bool) {
    for seed in 1..=SEEDS {
        let mut noise = Noise::from(seed);
        let mut tuner = Tuner::new(upper, start);
        let reached = simulate(&mut tuner, rate, JOB, &mut noise);
        let settled = tuner.settled();
        let share = rate(settled) / best(rate, upper);
        assert!(
            share >= 0.9,
            "seed {seed}: settled at {settled}, {share:.2} of the best"
        );
        assert!(fits(settled), "seed {seed}: settled at {settled}");
        let over_all = reached / best(rate, upper);
        assert!(
            over_all >= 0.9,
            "seed {seed}: {over_all:.3} of the best over all"
        );
    }
}

#[test]
fn the_published_curve() {
    for start in [1, START, 32] {
        settles(published, 32, start, |width| (4..=16).contains(&width));
    }
}

#[test]
fn a_linear_curve_is_climbed_to_its_end() {
    settles(linear, 2, START, |width| width == 2);
    settles(linear, 16, START, |width| width == 16);
    settles(linear, 24, START, |width| width == 24);
}

#[test]
fn a_flat_curve_needs_few_threads() {
    settles(flat, 2, START, |width| width == 1);
    settles(flat, 32, START, |width| width <= 2);
}

#[test]
fn where_threads_hinder_each_other_one_works() {
    settles(negative, 2, START, |width| width == 1);
    settles(negative, 32, START, |width| width == 1);
}

#[test]
fn a_curve_that_changes_is_followed() {
    let curves: [(&str, Curve); 4] = [
        ("published", published),
        ("linear", linear),
        ("flat", flat),
        ("negative", negative),
    ];
    for (before, first) in curves {
        for (after, then) in curves {
            for seed in 1..=SEEDS {
                let mut noise = Noise::from(seed);
                let mut tuner = Tuner::new(16, START);
                simulate(&mut tuner, first, JOB, &mut noise);
                simulate(&mut tuner, then, 2 * JOB, &mut noise);
                let settled = tuner.settled();
                let share = then(settled) / best(then, 16);
                assert!(
                    share >= 0.9,
                    "{before} to {after}, seed {seed}: settled at {settled}, {share:.2} of the best"
                );
            }
        }
    }
}

#[test]
fn two_threads_that_pay_are_found_within_a_job_of_8_gib() {
    for seed in 1..=SEEDS {
        let mut noise = Noise::from(seed);
        let mut tuner = Tuner::new(2, START);
        let reached = simulate(&mut tuner, linear, 8 * 16, &mut noise);
        let share = reached / linear(2);
        assert!(share > 0.93, "seed {seed}: {share:.3}"); // the noise alone costs 2 %
    }
}

#[test]
fn two_threads_that_hinder_each_other_much_cost_a_job_little() {
    let paging: Curve = |width| if width == 1 { 1e9 } else { 0.3e9 };
    for seed in 1..=SEEDS {
        let mut noise = Noise::from(seed);
        let mut tuner = Tuner::new(2, 1);
        let reached = simulate(&mut tuner, paging, 512, &mut noise);
        assert!(reached > 0.95e9, "seed {seed}: {reached:.2e}"); // noise: 2 %
    }
}

#[test]
fn threads_that_do_not_come_are_not_waited_for() {
    let mut tuner = Tuner::new(16, START);
    for _ in 0..1000 {
        tuner.sample(BATCH, Duration::from_millis(4), Some(1));
    }
    assert_eq!(tuner.width(), 1);
}

#[test]
fn odd_samples_are_survived() {
    let mut tuner = Tuner::new(0, 0);
    for busy in [None, Some(0), Some(1), Some(usize::MAX)] {
        for took in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            assert_eq!(tuner.sample(0, took, busy), 1);
            assert_eq!(tuner.sample(usize::MAX, took, busy), 1);
        }
    }
}
