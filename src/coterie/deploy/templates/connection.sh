command -v flwr > /dev/null || { echo "flwr is not there: pip install 'coterie[flower]', or activate its environment" >&2; exit 1; }
mkdir -p flwr && cat > flwr/config.toml << END
@{connection}
END
