"""The report of an audit as one HTML page that needs nothing else: no network and no script (A5).

In English and Chinese, one shown at a time by a style rule; all that comes from documents is escaped. Pure: the report
of `rag.audit` in, text out.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from .traces.page import csp_hash, shown

_STYLES = [Path(__file__).parent / "traces" / name for name in ("page.css", "audit.css")]
_SHOWN = 50  # rows of a table


def audit_page(report: Mapping[str, Any], kb: str) -> str:
    """The whole page; `kb` is the knowledge base as its commands name it."""
    style = "".join(path.read_text("utf-8") for path in _STYLES)
    policy = f"default-src 'none'; style-src '{csp_hash(style)}'"
    parts = [_head(report), _tiles(report), _charts(report), _groups(report), _recall(report["recall"]),
             _hardest(report), _quarantine(report, kb)]  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Knowledge base audit 知识库审计</title>\n<style>{style}</style></head>\n<body>\n"
        '<input class="choice" type="radio" name="language" id="en" checked aria-label="English">'
        '<input class="choice" type="radio" name="language" id="zh" aria-label="中文">\n<main>\n'
        '<p class="switch"><label for="en">English</label><label for="zh" lang="zh-Hans">中文</label></p>\n'
        + "\n".join(part for part in parts if part)
        + f"\n<footer>{_both('Scores', '评分')}: {shown(report['scorer'])}. "
        + f"{_both('Made by Shoal in', 'Shoal 生成，用时')} {report['seconds']:g} s.</footer></main></body></html>\n"
    )


def _both(english: str, chinese: str) -> str:
    """The same in both languages; the text must be markup already."""
    return f'<span class="en">{english}</span><span class="zh" lang="zh-Hans">{chinese}</span>'


def _head(report: Mapping[str, Any]) -> str:
    dry = _both(" Nothing was changed (dry run).", "（试运行，未做任何更改。）") if report["dry_run"] else ""
    if report["undone"]:
        dry = _both(
            " More answers were lost than allowed, so everything was put back.",
            "丢失的答案超过允许的比例，因此已全部恢复。",
        )
    limit = f"{report['limit']:g}"
    said = _both(
        "Depth score 0 to 1: high where the model skims, low where it has to dig. Documents below "
        f"{limit} are split into atomic units and scored again; units still below {limit} are set aside, out of every "
        "search, and kept.",
        f"深度分为 0 到 1：高表示模型可以略读，低表示必须深读。低于 {limit} 的文档被拆成原子单元并重新评分；"
        f"仍低于 {limit} 的单元移入隔离区：不参与检索，但不删除。",
    )
    return f"<h1>{_both('Knowledge base audit', '知识库审计')}</h1><p>{shown(report['made'])}</p><p>{said}{dry}</p>"


def _tiles(report: Mapping[str, Any]) -> str:
    size, counts, recall = report["size"], report["documents"], report["recall"]
    before, after = size["before"], size["after"]
    share = after["characters"] / max(1, before["characters"]) - 1
    tiles = [
        (f"{counts['all']:,}", _both("documents", "文档")),
        (f"{counts['easy']:,} / {counts['split']:,}", _both("easy / split", "易读 / 已拆分")),
        (f"{before['passages']:,} → {after['passages']:,}", _both("passages searched", "参与检索的段落")),
        (f"{share:+.0%}", _both("characters searched", "参与检索的字符数")),
        (f"{size['quarantined']['passages']:,}", _both("passages set aside", "隔离的段落")),
    ]
    if counts["not_scored"]:
        tiles.append(
            (f"{counts['not_scored']:,}", _both("documents not scored, left as they are", "未评分的文档，保持原样"))
        )
    if "after" in recall:
        tiles.append((f"{recall['before']:.1%} → {recall['after']:.1%}", _both("answer recall", "答案召回率")))
    return f'<div class="tiles">{"".join(_tile(value, label) for value, label in tiles)}</div>'


def _tile(value: str, label: str) -> str:
    return f'<div class="tile"><b>{shown(value)}</b><span>{label}</span></div>'


def _charts(report: Mapping[str, Any]) -> str:
    depth, limit = report["depth"], report["limit"]
    figures = [
        (depth["before"], "Before: documents", "审计前：文档"),
        (depth["after"], "After: easy documents and kept units", "审计后：易读文档与保留的单元"),
    ]
    drawn = "".join(
        f"<figure><figcaption>{_both(f'{english} ({sum(counts):,})', f'{chinese}（{sum(counts):,}）')}</figcaption>"
        f"{_histogram(counts, limit, f'{english}. {chinese}')}</figure>"
        for counts, english, chinese in figures
    )
    return f'<h2>{_both("Depth scores", "深度分分布")}</h2><div class="charts">{drawn}</div>'


def _histogram(counts: Sequence[int], limit: float, label: str) -> str:
    """Bars of equal width over 0 to 1, the hard ones in another colour, and a line at the limit."""
    most, wide, high = max([*counts, 1]), 400 / len(counts), 130
    bars = "".join(
        f'<rect class="{_kind(i, counts, limit)}" x="{21 + i * wide:.1f}" y="{20 + high - high * count / most:.1f}" '
        f'width="{wide - 2:.1f}" height="{high * count / most:.1f}"><title>{_bin(i, counts)}</title></rect>'
        for i, count in enumerate(counts)
    )
    line, foot = 20 + 400 * limit, 20 + high
    ticks = "".join(
        f'<text x="{20 + 400 * at:.0f}" y="168" text-anchor="middle">{at:g}</text>' for at in (0, 0.25, 0.5, 0.75, 1)
    )
    return (
        f'<svg viewBox="0 0 440 174" role="img" aria-label="{shown(label)}">'
        f'<rect class="ground" x="20" y="{foot}" width="400" height="1.5"/>{bars}'
        f'<line class="cut" x1="{line:.1f}" x2="{line:.1f}" y1="8" y2="{foot + 2}"/>'
        f'<text x="{line + 4:.1f}" y="15">{limit:g}</text>'
        f'<text x="420" y="15" text-anchor="end">{most:,}</text>{ticks}</svg>'
    )


def _kind(place: int, counts: Sequence[int], limit: float) -> str:
    return "hard" if (place + 0.5) / len(counts) < limit else "easy"


def _bin(place: int, counts: Sequence[int]) -> str:
    return f"{place / len(counts):.2f}-{(place + 1) / len(counts):.2f}: {counts[place]:,}"


def _groups(report: Mapping[str, Any]) -> str:
    tables = []
    for key, english, chinese in (("by_source", "By source", "按来源"), ("by_scenario", "By scenario", "按场景")):
        heads = [_both(english, chinese), _both("Documents", "文档"), _both("Mean", "均值"), _both("Split", "拆分"),
                 _both("Hard units", "难读单元"), _both("Depth scores, 0 to 1", "深度分，0 到 1")]  # fmt: skip
        rows = [
            [_wrap(row["name"]), _number(row["documents"]),
             _number("–" if row["mean"] is None else f"{row['mean']:.2f}"),
             _number(f"{row['hard'] / row['documents']:.0%}"), _number(row["hard_units"]),
             f"<td>{_strip(row['scores'], report['limit'])}</td>"]
            for row in report["depth"][key][:_SHOWN]
        ]  # fmt: skip
        tables.append(_table(heads, rows, len(report["depth"][key])))
    said = _both(
        "Hardest first; the darker a cell, the more of the row's documents.", "最难的在前；格子越深，该行文档越多。"
    )
    return f"<h2>{_both('Where the hard texts are', '难读的内容在哪里')}</h2><p>{said}</p>{''.join(tables)}"


def _strip(counts: Sequence[int], limit: float) -> str:
    """One row's histogram as cells, each the darker the more is in it."""
    most, wide = max([*counts, 1]), 200 / len(counts)
    filled = [i for i, count in enumerate(counts) if count]
    cells = "".join(
        f'<rect class="{_kind(i, counts, limit)}" x="{i * wide:.1f}" y="0" width="{wide - 0.6:.1f}" height="16" '
        f'fill-opacity="{0.15 + 0.85 * counts[i] / most:.2f}"/>'
        for i in filled
    )
    said = ", ".join(_bin(i, counts) for i in filled)
    return (
        f'<svg class="strip" viewBox="0 0 200 16" role="img" aria-label="{said}">'
        f'<rect class="ground" width="200" height="16"/>{cells}'
        f'<line class="cut" x1="{200 * limit:.1f}" x2="{200 * limit:.1f}" y1="0" y2="16"/></svg>'
    )


def _recall(recall: Mapping[str, Any]) -> str:
    title = f"<h2>{_both('Answer recall', '答案召回率')}</h2>"
    if recall["kind"] == "none":
        said = _both("Not measured: no questions were given, and no text lent itself to making some.",
                     "未测量：没有给出问题，也无法从文本中自动出题。")  # fmt: skip
        return f"{title}<p>{said}</p>"
    kinds = {
        "questions": _both("questions given", "给定的问题"),
        "holes": _both("sentences of the knowledge base with a word left out", "从知识库句子中挖空所得的题"),
    }
    k, asked = recall["k"], recall["asked"]
    said = _both(
        f"share with an answer in the first {k} passages found, of {asked}",
        f"前 {k} 个段落中含有答案的比例，共 {asked} 题，来自",
    )
    after = f" → {recall['after']:.1%}" if "after" in recall else ""
    figures = f"<p><b>{recall['before']:.1%}{after}</b> ({said} {kinds[recall['kind']]})</p>"
    lost = recall.get("lost", ())
    if not lost:
        return title + figures
    rows = [[_text(one["question"]), _text(" / ".join(one["answers"]))] for one in lost[:_SHOWN]]
    heads = [_both("No longer answered", "不再有答案的问题"), _both("Answer", "答案")]
    return title + figures + _table(heads, rows, len(lost))


def _hardest(report: Mapping[str, Any]) -> str:
    title = f"<h2>{_both('Hardest documents', '最难读的文档')}</h2>"
    if not report["hardest"]:
        return f"{title}<p>{_both('None is below the limit.', '没有低于界限的文档。')}</p>"
    heads = [
        _both("Document", "文档"),
        _both("Score", "深度分"),
        _both("Hard units", "难读单元"),
        _both("Start", "开头"),
    ]
    rows = [
        [_wrap(one["doc_id"]), _number(f"{one['score']:.2f}"), _number(one["quarantined"]), _text(one["text"])]
        for one in report["hardest"][:_SHOWN]
    ]
    return title + _table(heads, rows, report["documents"]["split"])


def _quarantine(report: Mapping[str, Any], kb: str) -> str:
    found = report["quarantine"]
    how = "".join(
        f"<p><code>shoal kb restore {what} --kb {shown(kb)}</code> {said}</p>"
        for what, said in (
            ("--all", _both("brings everything back", "全部恢复")),
            ("ID", _both("one passage, or all of a document, by its id", "按编号恢复一个段落或整个文档")),
        )
    )
    kept = _both("Set aside, never deleted: what is brought back stays in until its text changes.",
                 "只隔离，不删除；恢复后在文本改变之前不会再被隔离。")  # fmt: skip
    rows = [
        [f'<td class="wrap"><code>{shown(one["id"])}</code></td>',
         _wrap(f"{one['doc_id']}, {one['span'][0]}-{one['span'][1]}"),
         _number(f"{one['score']:.2f}"), _text(one["text"])]
        for one in found["hardest"][:_SHOWN]
    ]  # fmt: skip
    heads = [_both("Id", "编号"), _both("Place", "位置"), _both("Score", "深度分"), _both("Text", "文本")]
    table = _table(heads, rows, found["passages"]) if rows else ""
    return f"<h2>{_both('Quarantine', '隔离区')}</h2><p>{kept}</p>{how}{table}"


def _wrap(value: object) -> str:
    return f'<td class="wrap">{shown(value)}</td>'


def _number(value: object) -> str:
    return f'<td class="num">{shown(value)}</td>'


def _text(value: object) -> str:
    return f'<td class="text">{shown(value)}</td>'


def _table(heads: Iterable[str], rows: Sequence[Sequence[str]], total: int) -> str:
    """`heads` and the cells are markup; `total` says of how many rows these are the first."""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    more = (
        _both(f"The first {len(rows)} of {total:,}.", f"前 {len(rows)} 项，共 {total:,} 项。")
        if total > len(rows)
        else ""
    )
    table = f'<table class="rows"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="wide" tabindex="0">{table}</div>' + (f"<p>{more}</p>" if more else "")
