//! Sizes as people write them. Units are binary: `64M` is 67 108 864 bytes.

const UNITS: [(&str, u32); 4] = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Reads `4096`, `64M` or `64MiB`. Zero is refused: there is nothing to do with it.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => Some(0),
        _ => UNITS.iter().find_map(|(name, shift)| {
            let rest = unit.strip_prefix(name)?;
            matches!(rest, "" | "iB").then_some(*shift)
        }),
    };
    let (Some(shift), false) = (shift, number.is_empty()) else {
        return Err("a size is a whole number of bytes, or one with K, M, G, T \
                    (binary; also KiB, MiB, GiB, TiB), such as 64M"
            .into());
    };
    let bytes = number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or("this size is larger than any address space")?;
    if bytes == 0 {
        return Err("a size of zero leaves nothing to measure".into());
    }
    Ok(bytes)
}

/// Writes a size with the largest unit that keeps it at least 1.
pub fn show(bytes: u64) -> String {
    for (name, shift) in UNITS.iter().rev() {
        let unit = 1_u64 << shift;
        if bytes >= unit {
            return if bytes.is_multiple_of(unit) {
                format!("{} {name}iB", bytes / unit)
            } else {
                format!("{:.2} {name}iB", bytes as f64 / unit as f64)
            };
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary() {
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("4K", 4096),
            ("64M", 67_108_864),
            ("64MiB", 67_108_864),
            ("8G", 8 << 30),
            ("320GiB", 320 << 30),
            ("2T", 2 << 40),
            ("00004K", 4096),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "0",
            "0G",
            "-1",
            "+1",
            "1.5G",
            "64m",
            "64MB",
            "64 M",
            " 64M",
            "M",
            "64MiBx",
            "64iB",
            "0x10",
            "1P",
            "٣",
            "16777216T",
            "18446744073709551616",
            "1_000",
        ] {
            assert!(parse(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn the_largest_size_that_fits_is_taken() {
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse("16777215T"), Ok(16_777_215 << 40));
    }

    #[test]
    fn shown_sizes_are_short() {
        assert_eq!(show(512), "512 bytes");
        assert_eq!(show(64 * MIB), "64 MiB");
        assert_eq!(show(1536 * MIB), "1.50 GiB");
        assert_eq!(show(320 * GIB), "320 GiB");
    }
}
