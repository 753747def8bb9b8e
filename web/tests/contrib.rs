//! The dashboard and the alert rules ask for metrics that there are, and the document lists all of them.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use radic_web::metrics::{self, StoreSpace};
use radic_web::simulated::Cluster;
use radic_wire::membership::Role;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of all series that a node may have.
fn told() -> BTreeSet<String> {
    let cluster = Cluster { nodes: 3, ranks: 9 };
    let spare = radic_wire::local::NodeStatus { role: Role::Spare, ..cluster.node_status(1) };
    let space = Some(StoreSpace { free: 1, size: 2 });
    let texts = [metrics::encode(cluster.node_status(1), space), metrics::encode(spare, space)];
    let lines = texts.iter().flat_map(|text| text.as_ref().unwrap().lines()).filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("radic_"))
}

#[test]
fn what_is_asked_for_is_there() {
    let told = told();
    assert!(told.len() > 25, "{told:?}");
    let labels = ["radic_job"];
    for path in ["contrib/prometheus/alerts.yml", "contrib/prometheus/alerts_test.yml", "contrib/grafana/radic.json"] {
        let text = read(path);
        let asked: BTreeSet<_> = words(&text).filter(|word| !labels.contains(word)).collect();
        assert!(asked.len() > 5, "{path} asks for {asked:?} only");
        for name in asked {
            assert!(told.contains(name), "{path}: no node tells {name}; there are {told:#?}");
        }
    }
    let dashboard: serde_json::Value = serde_json::from_str(&read("contrib/grafana/radic.json")).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 8);
}

#[test]
fn the_document_lists_all_that_is_told() {
    let document = read("docs/watching.md");
    let listed: BTreeSet<_> = words(&document).map(str::to_owned).collect();
    for name in told() {
        assert!(listed.contains(&name), "docs/watching.md does not list {name}");
    }
    for name in listed.iter().filter(|name| *name != "radic_job") {
        assert!(told().contains(name), "docs/watching.md lists {name}, which no node tells");
    }
}
