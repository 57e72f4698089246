"""A corpus of given texts, for tests of what is made of one."""

from dataclasses import dataclass, field


@dataclass
class Documents:
    train: list[str]
    valid: list[str]
    name: str = "given"
    read: list[str] = field(default_factory=list)

    def documents(self, split):
        for text in getattr(self, split):
            self.read.append(text)
            yield text

    def manifest(self):
        return {"name": self.name}
