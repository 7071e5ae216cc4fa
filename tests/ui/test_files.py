"""Files in the page: seen, previewed, uploaded, moved, downloaded, deleted; thousands of them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from playwright.async_api import FilePayload, Page, expect

from client import Holdfast
from contracts.bodies import Session
from tests.support.running_stack import RunningStack
from tests.ui.conftest import OpenPage
from tests.ui.hooks import Hook, find, selector
from tests.ui.steps import UNTIL_LET_GO, let_go, probe, receipts, send

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]

# The smallest PNG, 1 by 1, and a PDF of one empty page.
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwAD"
    "hgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]>>endobj
trailer<</Root 1 0 R>>
"""
MAKE = "\n".join(
    (
        r"run: printf 'def f():\n    return 1\n' > code.py",
        r"""run: printf 'name,note\nlimpet,"a, ""b"" c"\n' > table.csv""",
        r"run: printf '# Tide\n\n<script>alert(1)</script> \n\n**strong**\n' > tide.md",
        f"run: echo {PNG} | base64 -d > dot.png",
        "run: head -c 700000 /dev/urandom > random.bin; seq 1 200000 > large.txt",
        "run: mkdir -p deep/er && echo x > deep/er/x.txt",
    )
)


async def open_file(page: Page, name: str) -> None:
    await find(page, Hook.FILE_ROWS).get_by_role("button", name=name).click()
    await expect(page.get_by_role("dialog", name=name)).to_be_visible()


async def close_file(page: Page) -> None:
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_every_kind_of_file_has_its_preview(
    open_page: OpenPage, session: Session, tmp_path: Path
) -> None:
    page = await open_page(session)
    await send(page, MAKE)
    await expect(receipts(page)).to_be_visible()
    dialog = page.get_by_role("dialog")

    await open_file(page, "code.py")
    plain = await dialog.get_by_text("return 1").evaluate("el => getComputedStyle(el).color")
    keyword = dialog.get_by_text("def", exact=True)
    await expect(keyword).not_to_have_css("color", plain)
    await close_file(page)

    await open_file(page, "table.csv")
    await expect(dialog.get_by_role("cell", name='a, "b" c')).to_be_visible()
    await close_file(page)

    await open_file(page, "tide.md")
    await expect(dialog.get_by_role("strong")).to_have_text("strong")
    await expect(dialog).to_contain_text("<script>alert(1)</script>")
    await close_file(page)

    await open_file(page, "dot.png")
    picture = dialog.get_by_role("img", name="dot.png")
    await expect(picture).to_be_visible()
    await expect(picture).to_have_js_property("naturalWidth", 1)
    await close_file(page)

    await open_file(page, "random.bin")
    await expect(find(dialog, Hook.HEX)).to_contain_text("00000010")
    await close_file(page)

    await open_file(page, "large.txt")
    size = find(dialog, Hook.PREVIEW_SIZE)
    await expect(size).to_contain_text("the first 262 KB shown")
    await find(dialog, Hook.PREVIEW_MORE).click()
    await expect(size).to_have_attribute("data-shown", str(512 * 1024))
    async with page.expect_download() as waiting:
        await dialog.get_by_role("link", name="Download").click()
    target = tmp_path / "large.txt"
    await (await waiting.value).save_as(target)
    assert target.read_text() == "".join(f"{n}\n" for n in range(1, 200_001))
    await close_file(page)

    await find(page, Hook.FILE_ROWS).get_by_role("button", name="deep").click()
    await find(page, Hook.FILE_ROWS).get_by_role("button", name="er", exact=True).click()
    await open_file(page, "x.txt")
    await expect(find(dialog, Hook.PREVIEW_PATH)).to_have_text("deep/er/x.txt")


async def test_upload_rename_folder_zip_and_delete(
    open_page: OpenPage, stack: RunningStack, session: Session, tmp_path: Path
) -> None:
    page = await open_page(session)
    files = find(page, Hook.FILES)
    await expect(find(files, Hook.NO_FILES)).to_be_visible()
    await find(files, Hook.UPLOAD).set_input_files(
        [
            FilePayload(name="a.pdf", mimeType="application/pdf", buffer=PDF),
            FilePayload(name="b ü#?.txt", mimeType="text/plain", buffer=b"uploaded"),
        ]
    )
    await expect(find(page, Hook.TOASTS)).to_contain_text("Uploaded 2 files")
    assert await stack.stored(session, "b ü#?.txt") == b"uploaded"

    await open_file(page, "a.pdf")
    await expect(page.get_by_role("dialog").get_by_title("a.pdf")).to_be_visible()
    await close_file(page)

    await files.get_by_role("button", name="New folder").click()
    await page.get_by_label("Path of the folder").fill("box")
    await page.keyboard.press("Enter")
    await expect(find(page, Hook.FILE_ROWS)).to_contain_text("box")

    await open_file(page, "b ü#?.txt")
    await close_file(page)
    await files.get_by_role("button", name="Rename").click()
    await page.get_by_label("New path").fill("box/c.txt")
    await page.keyboard.press("Enter")
    await expect(find(page, Hook.FILE_ROWS).get_by_role("button", name="b ü#?.txt")).to_have_count(
        0
    )
    assert await stack.stored(session, "box/c.txt") == b"uploaded"

    await find(page, Hook.FILE_ROWS).get_by_role("button", name="box").click()
    async with page.expect_download() as waiting:
        await files.get_by_role("link", name="Download box").click()
    target = tmp_path / "box.zip"
    await (await waiting.value).save_as(target)
    with zipfile.ZipFile(io.BytesIO(target.read_bytes())) as zipped:
        names = [name for name in zipped.namelist() if not name.endswith("/")]
        assert [name.rpartition("/")[2] for name in names] == ["c.txt"]
        assert zipped.read(names[0]) == b"uploaded"

    await files.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(find(page, Hook.TOASTS)).to_contain_text("Deleted 1 file")
    await expect(find(page, Hook.FILE_ROWS).get_by_role("button", name="box")).to_have_count(0)
    assert await stack.stored(session, "box/c.txt") is None
    assert await stack.stored(session, "a.pdf") == PDF


async def test_a_folder_of_five_thousand_files_is_listed_and_scrolled(
    open_page: OpenPage, session: Session
) -> None:
    page = await open_page(session)
    await send(page, "run: mkdir many && cd many && for i in $(seq -w 1 5000); do : > f$i; done")
    await expect(receipts(page)).to_have_attribute("data-files", "5000", timeout=150_000)
    await find(page, Hook.FILE_ROWS).get_by_role("button", name="many").click()
    await expect(find(page, Hook.FILE_ROWS).get_by_text("f0001", exact=True)).to_be_visible()
    rows = find(page, Hook.FILE_ROWS)
    listed = {"rows": selector(Hook.FILE_ROWS), "wanted": 5001}
    await page.wait_for_function(probe("scrolled_to_the_end"), arg=listed)
    await rows.evaluate("el => { el.scrollTop = el.scrollHeight }")
    await expect(rows.get_by_text("f5000", exact=True)).to_be_visible()
    assert await find(rows, Hook.FILE_ROW).count() < 80


async def test_the_live_view_marks_what_no_receipt_proves_yet(
    open_page: OpenPage, session: Session, hf: Holdfast
) -> None:
    page = await open_page(session)
    await send(page, "write old to old.txt")
    await expect(receipts(page)).to_have_count(1)
    await send(page, f"run: echo new > new.txt; rm old.txt; {UNTIL_LET_GO}")
    files = find(page, Hook.FILES)
    await expect(find(page, Hook.TOOL, state="running")).to_be_visible()
    await files.get_by_role("button", name="Live").click()
    rows = find(page, Hook.FILE_ROW)
    new, old = rows.filter(has_text="new.txt"), rows.filter(has_text="old.txt")
    await expect(new).to_have_attribute("data-durable", "false")
    await expect(new).to_contain_text("not yet durable")
    await expect(old).to_have_attribute("data-kind", "removed")
    await expect(old).to_contain_text("deleted, not yet durable")
    await let_go(hf, session)
    await expect(receipts(page)).to_have_count(2)
    await expect(new).not_to_have_attribute("data-durable", "false")
    await expect(new).not_to_contain_text("not yet durable")
    await files.get_by_role("button", name="Durable").click()
    await expect(rows).to_have_count(2)  # and what let the turn go on
