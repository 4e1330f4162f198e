//! A batch job that leaves with its memory given back on all CPUs.
//!
//! `cargo run --release --example exit-before -- 4` holds 4 GiB and leaves; compare
//! `time` of that with `-- 4 plain`.

use std::{env, error::Error, io::Write as _, thread};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let gib: usize = args.next().map_or(Ok(1), |text| text.parse())?;
    let plain = args.next().is_some_and(|word| word == "plain");

    let bytes = gib
        .checked_mul(1 << 30)
        .ok_or("that many GiB do not fit in an address")?;
    let mut results = mmzap::Map::options().huge_pages(false).map(bytes)?;
    let half = bytes / 2;
    let (left, right) = results.split_at_mut(half);
    thread::scope(|scope| {
        for part in [left, right] {
            scope.spawn(|| {
                for page in part.chunks_mut(4096) {
                    page[0] = 1;
                }
            });
        }
    });

    let mut out = std::io::stdout();
    writeln!(
        out,
        "{} pages written",
        results.chunks(4096).filter(|page| page[0] == 1).count()
    )?;
    if plain {
        std::process::exit(0)
    }
    mmzap::exit::parallel(0)
}
