//! Access to the page: a valid token, as basic-auth password or bearer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use radic_wire::token::{TokenError, Tokens};

/// Longest value of an `Authorization` header that is looked at, in bytes.
const LONGEST: usize = 512;

/// Why a request gets no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request shows no token.
    #[error("a token is needed, as password or as bearer: `radic web` makes one")]
    Missing,
    /// What the request shows is not understood.
    #[error("the Authorization header is neither Basic nor Bearer with a token: `radic web` makes one")]
    Malformed,
    /// The request shows a token that is not taken.
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// Whether a request with this header may be answered at this time, in seconds since 1970.
pub fn check(tokens: &Tokens, header: Option<&[u8]>, now: u64) -> Result<(), Refusal> {
    let header = header.ok_or(Refusal::Missing)?;
    if header.len() > LONGEST {
        return Err(Refusal::Malformed);
    }
    let text = std::str::from_utf8(header).map_err(|_| Refusal::Malformed)?;
    let (scheme, rest) = text.trim().split_once(' ').ok_or(Refusal::Malformed)?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(tokens.check(rest, now)?);
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(Refusal::Malformed);
    }
    let decoded = STANDARD.decode(rest).ok().and_then(|bytes| String::from_utf8(bytes).ok()).ok_or(Refusal::Malformed)?;
    // Any name will do: browsers want one.
    let (_, password) = decoded.split_once(':').ok_or(Refusal::Malformed)?;
    Ok(tokens.check(password, now)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use radic_wire::key::ClusterKey;

    use super::*;

    fn tokens() -> Tokens {
        Tokens::new(&ClusterKey::from_bytes([7; 32]))
    }

    #[test]
    fn a_token_is_taken_both_ways() {
        let token = tokens().issue(100);
        let basic = format!("Basic {}", STANDARD.encode(format!("radic:{token}")));
        for header in [format!("Bearer {token}"), format!("bearer  {token} "), basic] {
            assert_eq!(check(&tokens(), Some(header.as_bytes()), 99), Ok(()), "{header}");
            assert_eq!(check(&tokens(), Some(header.as_bytes()), 100), Err(Refusal::Token(TokenError::Old)), "{header}");
        }
    }

    #[test]
    fn nothing_else_is() {
        let token = tokens().issue(100);
        assert_eq!(check(&tokens(), None, 0), Err(Refusal::Missing));
        let no_colon = format!("Basic {}", STANDARD.encode(&token));
        for header in [&token, "", "Bearer", "Digest x", "Basic ***", &no_colon, &format!("Bearer {}", "x".repeat(600))] {
            assert_eq!(check(&tokens(), Some(header.as_bytes()), 0), Err(Refusal::Malformed), "{header}");
        }
        let other = Tokens::new(&ClusterKey::from_bytes([8; 32])).issue(100);
        let header = format!("Bearer {other}");
        assert_eq!(check(&tokens(), Some(header.as_bytes()), 0), Err(Refusal::Token(TokenError::Wrong)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..600), basic in any::<bool>()) {
            let mut header = if basic { b"Basic ".to_vec() } else { Vec::new() };
            header.extend(bytes);
            prop_assert!(check(&tokens(), Some(&header), 0).is_err());
        }
    }
}
