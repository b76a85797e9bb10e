mkdir -p flwr && cat > flwr/config.toml << END
@{connection}
END
