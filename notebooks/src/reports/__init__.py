"""What the reports and the page of results show of the committed records."""
