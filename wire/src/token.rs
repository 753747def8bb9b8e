//! Tokens: with one a program reads the daemon's page and metrics over HTTP until a given time. They are made from the cluster's key, so
//! every node takes them, no node stores them, and a new key ends all of them.

use std::fmt;

use crate::key::ClusterKey;
use crate::mac::{JobKey, MAC, Purpose};

/// What every token begins with: a tool that looks for leaked secrets knows it by that.
const PREFIX: &str = "radic-";
/// Longest token that is looked at, in bytes.
const LONGEST: usize = 64;

/// Why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token is none of this cluster.
    #[error("this is no token of this cluster: `radic web` makes one")]
    Wrong,
    /// The token has expired.
    #[error("this token has expired: `radic web` makes another one")]
    Old,
}

/// Makes and checks the tokens of one cluster.
pub struct Tokens(JobKey);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens(..)")
    }
}

impl Tokens {
    /// The tokens of the cluster with this key.
    pub fn new(key: &ClusterKey) -> Tokens {
        Tokens(JobKey::derive_for_tokens(key))
    }

    /// A token that is taken until this time, in seconds since 1970.
    pub fn issue(&self, until: u64) -> String {
        let code = self.0.mac(Purpose::Token, &[&until.to_le_bytes()]);
        let digits: String = code.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{PREFIX}{until:x}-{digits}")
    }

    /// Whether this is a token that is taken at this time, in seconds since 1970.
    pub fn check(&self, token: &str, now: u64) -> Result<(), TokenError> {
        let (until, code) = parse(token).ok_or(TokenError::Wrong)?;
        if !self.0.verify(Purpose::Token, &[&until.to_le_bytes()], &code) {
            return Err(TokenError::Wrong);
        }
        if until <= now { Err(TokenError::Old) } else { Ok(()) }
    }
}

fn parse(token: &str) -> Option<(u64, [u8; MAC])> {
    if token.len() > LONGEST || !token.is_ascii() {
        return None;
    }
    let (until, digits) = token.strip_prefix(PREFIX)?.split_once('-')?;
    // Each token can be written in one way only.
    let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    if !until.bytes().chain(digits.bytes()).all(is_digit) || until.starts_with('0') || digits.len() != 2 * MAC {
        return None;
    }
    let mut code = [0; MAC];
    for (byte, pair) in code.iter_mut().zip(0..) {
        *byte = u8::from_str_radix(digits.get(2 * pair..2 * pair + 2)?, 16).ok()?;
    }
    Some((u64::from_str_radix(until, 16).ok()?, code))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(byte: u8) -> Tokens {
        Tokens::new(&ClusterKey::from_bytes([byte; 32]))
    }

    #[test]
    fn a_token_is_taken_by_its_cluster_until_its_time() {
        let token = tokens(1).issue(1_000);
        assert_eq!((tokens(1).check(&token, 999), tokens(1).check(&token, 1_000)), (Ok(()), Err(TokenError::Old)));
        assert_eq!(tokens(2).check(&token, 999), Err(TokenError::Wrong), "the key of another cluster");
    }

    #[test]
    fn a_later_time_is_not_to_be_had_by_writing_it() {
        let (token, later) = (tokens(1).issue(0x3e8), tokens(1).issue(0x3e9));
        let forged = token.replace("3e8-", "3e9-");
        assert_eq!((tokens(1).check(&forged, 0), tokens(1).check(&later, 0)), (Err(TokenError::Wrong), Ok(())));
    }

    proptest! {
        #[test]
        fn no_other_text_is_a_token(until in 1u64.., at in any::<prop::sample::Index>(), byte in 1u8..128, text in ".{0,80}") {
            let good = tokens(1).issue(until);
            prop_assert_eq!(tokens(1).check(&good, until - 1), Ok(()));
            let mut bad = good.clone().into_bytes();
            let at = at.index(bad.len());
            bad[at] ^= byte;
            if let Ok(bad) = String::from_utf8(bad) {
                prop_assert_eq!(tokens(1).check(&bad, 0), Err(TokenError::Wrong));
            }
            prop_assert_eq!(tokens(1).check(&text, 0), Err(TokenError::Wrong));
        }
    }
}
