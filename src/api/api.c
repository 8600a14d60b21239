typedef int sl_placeholder_api;
