"""Import of the chat logs of IRC clients into a store."""
