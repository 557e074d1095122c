//! Compiles the `.proto` files without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "proto/scafo/supervisor/v1/supervisor.proto",
        "proto/scafo/registry/v1/registry.proto",
        "proto/scafo/registry/v1/administration.proto",
        "proto/scafo/storage/v1/storage.proto",
        "proto/scafo/router/v1/router.proto",
        "proto/scafo/observe/v1/observe.proto",
    ];
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
