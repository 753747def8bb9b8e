//! Names as people and files write them: of nodes, of jobs.

use radic_wire::ids::{JobId, NodeName};

use crate::Inputs;

/// What is a name is printed as it was read (a job's digits in lower case).
pub fn check(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let (node, job) = (text.parse::<NodeName>(), text.parse::<JobId>());
    if let Ok(node) = &node {
        assert_eq!(node.to_string(), text);
        assert!(
            !text.contains(['/', '\0', '\n', ' ']) && !text.starts_with('.') && text.len() <= 64,
            "a name that leads elsewhere"
        );
    }
    if let Ok(job) = &job {
        assert_eq!(job.to_string(), text.to_lowercase());
        assert_eq!(JobId::from_bits(job.bits()), *job);
    }
    node.is_ok() || job.is_ok()
}

/// Inputs that are accepted.
pub fn first() -> Inputs {
    vec![("node", b"node-07.cluster_x".to_vec()), ("job", b"0123456789aB".to_vec()), ("short", b"n".to_vec())]
}
