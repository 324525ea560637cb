"""A report of one mask on one page: definition, cost, speed and quality."""

from maskc.lab.report.document import Document as Document
from maskc.lab.report.sections import Subject as Subject
from maskc.lab.report.sections import document as document
