//! One line of PMI-1: `cmd=NAME key=value key=value`, fields separated by spaces.

/// A command line, its fields borrowed from it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command<'a> {
    /// What `cmd=` or `mcmd=` names.
    pub(super) name: &'a str,
    /// Whether it was `mcmd=`: more lines belong to it, up to `endcmd`.
    pub(super) continues: bool,
    /// Everything after the name.
    rest: &'a str,
}

impl<'a> Command<'a> {
    /// The command of a line (without its newline), if it is one.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        let text = printable(line)?.trim_matches(' ');
        let (continues, after) = match text.strip_prefix("cmd=") {
            Some(after) => (false, after),
            None => (true, text.strip_prefix("mcmd=")?),
        };
        let (name, rest) = after.split_once(' ').unwrap_or((after, ""));
        let is_name = !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-');
        is_name.then_some(Command { name, continues, rest })
    }

    /// The value of the first field `key`.
    pub(super) fn field(&self, key: &str) -> Option<&'a str> {
        self.rest.split(' ').find_map(|field| field.strip_prefix(key)?.strip_prefix('='))
    }

    /// The number in the field `key`.
    pub(super) fn number<N: std::str::FromStr>(&self, key: &str) -> Option<N> {
        self.field(key)?.parse().ok()
    }

    /// Whether it has no fields but `keys`. A space within a value, which no client escapes, looks like one more.
    pub(super) fn has_only(&self, keys: &[&str]) -> bool {
        let mut fields = self.rest.split(' ').filter(|field| !field.is_empty());
        fields.all(|field| field.split_once('=').is_some_and(|(key, _)| keys.contains(&key)))
    }

    /// The rest of the line from the value of the field `key` on: a text or a name, which may contain spaces.
    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        let padded_at = |at: &usize| *at == 0 || self.rest.as_bytes()[at - 1] == b' ';
        let mut places = self.rest.match_indices(key).map(|(at, _)| at).filter(padded_at);
        places.find_map(|at| self.rest[at + key.len()..].strip_prefix('='))
    }
}

/// The line as text, if nothing in it is a control character.
pub(super) fn printable(line: &[u8]) -> Option<&str> {
    std::str::from_utf8(line).ok().filter(|text| !text.chars().any(char::is_control))
}

/// `text` as the value of a field: nothing that would end the value or the line.
pub(super) fn one_word(text: &str) -> String {
    text.chars().map(|c| if c == ' ' || c == '=' || c.is_control() { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_taken_apart() {
        let command = Command::parse(b"cmd=put kvsname=k key=a value=x=y").unwrap();
        assert_eq!((command.name, command.continues), ("put", false));
        assert_eq!(command.field("key"), Some("a"));
        assert_eq!(command.field("value"), Some("x=y"));
        assert_eq!(command.field("alue"), None);
        assert_eq!(Command::parse(b"cmd=get_maxes").unwrap().field("a"), None);
        assert!(Command::parse(b"mcmd=spawn").unwrap().continues);
        assert!(command.has_only(&["kvsname", "key", "value"]));
        assert!(!command.has_only(&["kvsname", "key"]));
        for spaced in [&b"cmd=get kvsname=k key=a b"[..], b"cmd=get kvsname=k key=a b=c"] {
            assert!(!Command::parse(spaced).unwrap().has_only(&["kvsname", "key"]));
        }
        let abort = Command::parse(b"cmd=abort exitcode=7 error_msg=it is a mess").unwrap();
        assert_eq!(abort.number::<i32>("exitcode"), Some(7));
        assert_eq!(abort.text("error_msg"), Some("it is a mess"));
    }

    #[test]
    fn garbage_is_no_command() {
        for garbage in [
            &b""[..],
            b"put key=a",
            b"cmd=",
            b"cmd= a=b",
            b"cmd=a;b",
            b"cmd=get key=\x07",
            b"cmd=get key=\xff",
            b"GET / HTTP/1.1\r",
        ] {
            assert_eq!(Command::parse(garbage), None, "{garbage:?}");
        }
    }

    #[test]
    fn a_text_for_people_becomes_one_word() {
        assert_eq!(one_word("no such key a=b\n"), "no_such_key_a_b_");
    }
}
