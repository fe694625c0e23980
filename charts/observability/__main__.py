"""Writes the dashboards' files into the chart: `PYTHONPATH=charts python -m observability`."""

from observability.files import files


def main() -> None:
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
