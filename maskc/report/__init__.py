"""A report of one mask: what it is, what it costs, saves and loses, as one page for people."""

from maskc.report.document import Document as Document
from maskc.report.sections import Subject as Subject
from maskc.report.sections import document as document
