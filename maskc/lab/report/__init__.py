"""A report of one mask: what it is, what it costs, saves and loses, as one page for people."""

from maskc.lab.report.document import Document as Document
from maskc.lab.report.sections import Subject as Subject
from maskc.lab.report.sections import document as document
