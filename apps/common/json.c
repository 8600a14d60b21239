typedef int sl_placeholder_json;
