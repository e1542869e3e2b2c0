"""The documents of archives, as protobuf's compiler makes them. `make proto` makes them anew."""
