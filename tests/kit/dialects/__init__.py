"""The clients of each protocol: how they write what a chat client would say."""
