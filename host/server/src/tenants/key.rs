//! API keys and their digests.
//!
//! A key has 256 random bits, so a single SHA-256 protects it: it can't be guessed from its digest, and a
//! slow password hash would only delay every request. For the same reason short keys are rejected.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Prefix of generated keys, which scanners for leaked secrets can look for.
const PREFIX: &str = "infer-";
/// Shortest accepted key.
const MIN_BYTES: usize = 32;
/// Longest accepted key.
const MAX_BYTES: usize = 512;
/// Prefix of a written digest.
const SCHEME: &str = "sha256:";
/// Digits that name a key in the log. They reveal nothing of 256 random bits.
const SHORT: usize = 8;

/// The digest of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// The digest of a key.
    pub fn of(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// Parses `sha256:` and 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "expected `{SCHEME}` and 64 hexadecimal digits, as printed by `infer keys hash`; don't put keys \
                 themselves here"
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

    /// The first digits, without the prefix. They tell the keys of a file apart.
    pub fn short(&self) -> String {
        self.to_string()[SCHEME.len()..][..SHORT].to_owned()
    }

    /// Compares in constant time.
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

/// Generates a key.
pub fn fresh() -> std::io::Result<String> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(format!("no randomness: {e}")))?;
    Ok(bytes.iter().fold(PREFIX.to_owned(), |text, byte| text + &format!("{byte:02x}")))
}

/// Checks that clients can send a key, of which no digest is stored.
pub fn check_plain(key: &str) -> Result<(), String> {
    if !key.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("a key may only contain visible ASCII characters".to_owned());
    }
    if key.len() > MAX_BYTES {
        return Err(format!("a key may have up to {MAX_BYTES} characters, this one has {}", key.len()));
    }
    Ok(())
}

/// Whether a secret may be guessed, because it has fewer characters than a key from elsewhere must have.
pub fn is_short(secret: &str) -> bool {
    secret.trim().len() < MIN_BYTES
}

/// Checks that a key from elsewhere is long enough for an unsalted digest.
pub fn check_strength(key: &str) -> Result<(), String> {
    check_plain(key)?;
    if !(MIN_BYTES..=MAX_BYTES).contains(&key.len()) {
        return Err(format!(
            "a key must have {MIN_BYTES} to {MAX_BYTES} characters, this one has {}: a short key could be guessed \
             from its digest; `infer keys new` generates one",
            key.len()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_parse_back_to_themselves() {
        // FIPS 180-4's example for "abc".
        let digest = KeyDigest::of("abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((digest.to_string().as_str(), digest.short().as_str()), (text, "ba7816bf"));
        assert!(KeyDigest::parse(text).unwrap().matches(&digest));
        assert!(!KeyDigest::of("abd").matches(&digest));
        for wrong in ["", "sha256:", &text[7..], &text[..70], "sha256:zz", "infer-0123"] {
            assert!(KeyDigest::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn generated_keys_are_distinct_and_strong() {
        let (a, b) = (fresh().unwrap(), fresh().unwrap());
        assert_ne!(a, b);
        check_strength(&a).unwrap();
        assert!(check_strength("hunter2").is_err() && check_strength(&"x y".repeat(20)).is_err());
    }
}
