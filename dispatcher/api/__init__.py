"""What clients call: admission, cluster objects, queries and watches, and the router in front of them."""
