"""The replicated op log as a pure machine: accept, push, repair, receipts."""
