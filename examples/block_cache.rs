//! A cache of blocks of a file that gives its memory up when others need it.
//!
//! `cargo run --release --example block_cache -- FILE [MIB]` reads FILE twice in
//! blocks of 64 KiB through a cache of at most MIB, and says how often the disk
//! was asked. What is in the cache costs the rest of the machine nothing: under
//! pressure the kernel takes it, and the next reader gets the block from the file
//! again.

use std::{env, fs::File, io, os::unix::fs::FileExt as _, process::ExitCode};

use mmzap::volatile::VolatileCache;

const BLOCK_BYTES: usize = 64 << 10;

struct BlockCache {
    file: File,
    blocks: VolatileCache<u64>,
}

impl BlockCache {
    fn new(file: File, bytes: usize) -> io::Result<Self> {
        Ok(Self {
            file,
            blocks: VolatileCache::new(bytes)?,
        })
    }

    /// Lets `look` have block `number`; `false` past the end of the file.
    fn with_block(&self, number: u64, look: impl FnOnce(&[u8])) -> io::Result<bool> {
        if let Some(block) = self.blocks.get(&number) {
            look(&block);
            return Ok(true);
        }
        let mut block = vec![0; BLOCK_BYTES];
        let mut len = 0;
        while len < BLOCK_BYTES {
            let at = number * BLOCK_BYTES as u64 + len as u64;
            match self.file.read_at(&mut block[len..], at)? {
                0 => break,
                more => len += more,
            }
        }
        block.truncate(len);
        if block.is_empty() {
            return Ok(false);
        }
        look(&block);
        // No room beside what others are reading: then not.
        self.blocks.insert(number, block);
        Ok(true)
    }
}

fn run(path: &str, mib: usize) -> io::Result<()> {
    let cache = BlockCache::new(File::open(path)?, mib << 20)?;
    let mut sum = 0_u64;
    for _ in 0..2 {
        let mut number = 0;
        while cache.with_block(number, |block| {
            sum = block
                .iter()
                .fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte)));
        })? {
            number += 1;
        }
    }
    println!("sum of all bytes, twice: {sum}; {:?}", cache.blocks.stats());
    Ok(())
}

fn main() -> ExitCode {
    let mut args = env::args().skip(1);
    let (Some(path), Ok(mib)) = (args.next(), args.next().map_or(Ok(256), |mib| mib.parse()))
    else {
        eprintln!("usage: block_cache FILE [MIB]");
        return ExitCode::from(2);
    };
    match run(&path, mib) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("block_cache: {path}: {error}");
            ExitCode::FAILURE
        }
    }
}
