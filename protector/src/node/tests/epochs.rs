//! No two homes of a job give the same epoch, whatever each of them has heard of the others (G4).

use super::*;

/// The epoch that the home at `node` has begun, once it has.
fn begun_by(cluster: &Cluster, node: usize, job: JobId) -> Option<Epoch> {
    let home = cluster.nodes[&name(node)].homes.get(&job)?;
    (home.epoch() > Epoch::FIRST).then(|| home.epoch())
}

/// The home is lost, and the next one restarts the job from its beginning: rank 0 has no image. That home is cut off in the
/// moment in which it has begun the next epoch on its own node, before any word of that leaves it. The third home has heard of
/// the first epoch alone, and restarts the job, too. Processes of the second home's epoch may still run behind the cut, and when
/// it heals, processes of the third home's epoch must not take them for their own.
#[test]
fn a_home_that_is_cut_off_and_its_successor_give_different_epochs() {
    for restart_on in [RestartOn::Protector, RestartOn::Any] {
        let mut cluster = Cluster::new(6);
        cluster.restart_on = restart_on;
        let job = cluster.start_recoverable(6, 3);
        cluster.images.retain(|(_, process), _| process.rank != Rank(0));
        cluster.kill_all(&[1]);
        let second = loop {
            cluster.step();
            if let Some(home) = (2..=6).find(|node| begun_by(&cluster, *node, job).is_some()) {
                break home;
            }
            assert!(cluster.now < Duration::from_secs(60), "{}", cluster.story(job, 3));
        };
        let of_second = begun_by(&cluster, second, job);
        cluster.wire.retain(|(_, _, input)| !matches!(input, Input::Message(from, _) if *from == id(second)));
        cluster.kill_all(&[second]);
        let third = |cluster: &Cluster| (2..=6).filter(|node| *node != second).find_map(|node| begun_by(cluster, node, job));
        cluster.run_until(|cluster| third(cluster).is_some());
        assert_ne!(third(&cluster), of_second, "{}", cluster.story(job, 3));
    }
}
