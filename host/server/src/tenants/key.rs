//! API keys and their digests.
//!
//! A key has 256 random bits, so one pass of SHA-256 is all that its digest needs: there is nothing to
//! guess, and every request can be checked in a microsecond. That is why short keys are refused here.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What every key that is made here begins with, so that scanners of leaked secrets can find it.
const PREFIX: &str = "infer-";
/// Shortest key that is taken over from elsewhere.
const MIN_BYTES: usize = 32;
/// Longest.
const MAX_BYTES: usize = 512;
/// How a digest is written.
const SCHEME: &str = "sha256:";

/// The digest of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// Of a key.
    pub fn of(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// From `sha256:` and 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "expected `{SCHEME}` and 64 hexadecimal digits, as `infer keys hash` prints them; keys themselves \
                 don't belong here"
            )
        };
        let digits = text.strip_prefix(SCHEME).ok_or_else(wrong)?;
        if digits.len() != 64 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }

    /// Whether they are the same; takes the same time wherever they differ.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl std::fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(SCHEME)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A new key.
pub fn fresh() -> std::io::Result<String> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(format!("no randomness: {e}")))?;
    Ok(bytes.iter().fold(PREFIX.to_owned(), |text, byte| text + &format!("{byte:02x}")))
}

/// Whether a key from elsewhere is long enough to be kept as a plain digest.
pub fn check_strength(key: &str) -> Result<(), String> {
    if !key.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("a key has visible ASCII characters only".to_owned());
    }
    if !(MIN_BYTES..=MAX_BYTES).contains(&key.len()) {
        return Err(format!(
            "a key has {MIN_BYTES} to {MAX_BYTES} characters, this one {}: a shorter one could be guessed from \
             its digest; `infer keys new` makes one",
            key.len()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_and_read() {
        // FIPS 180-4's example for "abc".
        let digest = KeyDigest::of("abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert!(KeyDigest::parse(text).unwrap().matches(&digest));
        assert!(!KeyDigest::of("abd").matches(&digest));
        for wrong in ["", "sha256:", &text[7..], &text[..70], "sha256:zz", "infer-0123"] {
            assert!(KeyDigest::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn fresh_keys_differ_and_are_strong() {
        let (a, b) = (fresh().unwrap(), fresh().unwrap());
        assert_ne!(a, b);
        check_strength(&a).unwrap();
        assert!(check_strength("hunter2").is_err() && check_strength(&"x y".repeat(20)).is_err());
    }
}
