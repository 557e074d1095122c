//! The same limits where control groups are of version 2, which machines with systemd have and build machines often have not.

use scafo_tests::uml;

#[tokio::test]
async fn a_hog_of_each_kind_harms_only_itself_under_control_groups_of_version_2() {
    let said = match uml::run("hogs::a_hog_of_each_kind_harms_only_itself").await {
        Ok(said) => said,
        Err(why) => return eprintln!("SKIPPED: control groups of version 2 were not tried: {why}"),
    };
    assert!(said.contains("controllers: ") && said.contains(" memory pids"), "{said}");
    let killed = said.lines().find_map(|line| line.trim().strip_prefix("killed for memory: ")?.parse::<u32>().ok());
    assert!(killed.is_some_and(|killed| killed > 0), "nobody was killed by the kernel: {said}");
}
