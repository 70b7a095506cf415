"""Every encoding, read back by the classes generated from the ORCA proto and by its JSON parser."""

from base64 import b64decode

from google.protobuf import json_format
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st
from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport

from orca_sidecar.core.load_report import FIELDS, Format, LoadReport
from orca_sidecar.core.report_encoding import encode_bin, encode_json, encode_text, render

figures = st.floats(0, 1e9)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
figure_maps = st.dictionaries(names, figures, max_size=4)
reports = st.builds(
    LoadReport,
    application_utilization=figures,
    cpu_utilization=figures,
    mem_utilization=figures,
    rps_fractional=figures,
    eps=figures,
    named_metrics=figure_maps,
    utilization=figure_maps,
)


def checked(report: LoadReport) -> LoadReport:
    sound = report.checked()
    assert sound is not None
    return sound


@given(reports)
def test_bin_is_the_serialized_proto(report: LoadReport) -> None:
    message = OrcaLoadReport.FromString(encode_bin(report))
    expected = checked(report)
    for name in FIELDS:
        assert getattr(message, name) == getattr(expected, name)
    assert dict(message.named_metrics) == expected.named_metrics
    assert dict(message.utilization) == expected.utilization
    assert len(UnknownFieldSet(message)) == 0


@given(reports, st.lists(st.sampled_from(FIELDS), unique=True))
def test_only_the_configured_fields_are_said(report: LoadReport, fields: list[str]) -> None:
    message = OrcaLoadReport.FromString(encode_bin(report, fields))
    said = {descriptor.name for descriptor, _ in message.ListFields()}
    assert said <= {*fields, "named_metrics", "utilization"}
    assert said >= {name for name in fields if getattr(checked(report), name)}


@given(reports)
def test_json_is_the_protos_json(report: LoadReport) -> None:
    message = json_format.Parse(encode_json(report), OrcaLoadReport())
    expected = checked(report)
    for name in FIELDS:
        assert getattr(message, name) == round(getattr(expected, name), 4)
    assert dict(message.named_metrics) == {k: round(v, 4) for k, v in expected.named_metrics.items()}
    assert dict(message.utilization) == {k: round(v, 4) for k, v in expected.utilization.items()}


def test_text_json_and_bin_say_the_same() -> None:
    report = LoadReport(0.43612, 0.3, 0.51234, 10.25, 0.0, {"inflight_read_only": 4.5})
    lines = render(checked(report), list(Format))
    binary = OrcaLoadReport.FromString(b64decode(lines[Format.BIN].split(b" ")[2]))
    parsed = json_format.Parse(lines[Format.JSON].split(b" ", 2)[2], OrcaLoadReport())
    text = dict(pair.split("=") for pair in encode_text(report).decode().split(", "))
    for name in FIELDS:
        assert f"{getattr(binary, name):.4f}" == f"{getattr(parsed, name):.4f}" == text[name]
    assert binary.named_metrics["inflight_read_only"] == parsed.named_metrics["inflight_read_only"] == 4.5
    assert text["named_metrics.inflight_read_only"] == "4.5000"
